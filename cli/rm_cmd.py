"""`cw-snapshot rm`: delete snapshots."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.errors import ExitCode


@command("rm", ExitCode.NOT_FOUND, ExitCode.UNREACHABLE)
@settings_options("repository")
@click.argument("snapshots", nargs=-1, required=True, metavar="SNAP...")
def rm_command(context: Context, snapshots: tuple[str, ...]) -> None:
    """Delete snapshots. SNAP is an id or a unique beginning of one, a name, or latest:JOB.

    All are looked up before the first is deleted. What they stored stays in the repository until
    it is pruned, which a later release does.
    """
    repository = context.repository()
    refs = [repository.find(token) for token in snapshots]
    for ref in refs:
        repository.delete_snapshot(ref)
    names = [f"{ref.job}/{ref.snapshot}" for ref in refs]
    context.emit("rm", {"deleted": names}, lambda: click.echo("\n".join(f"deleted {n}" for n in names)))
