"""`cw-snapshot rm`: delete snapshots."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.errors import CwError, ExitCode


@command("rm", ExitCode.NOT_FOUND, ExitCode.INTEGRITY, ExitCode.UNREACHABLE)
@settings_options("repository")
@click.argument("snapshots", nargs=-1, required=True, metavar="SNAP...")
def rm_command(context: Context, snapshots: tuple[str, ...]) -> None:
    """Delete snapshots. SNAP is an id or a unique beginning of one, a name, or latest:JOB.

    All are looked up before the first is deleted. What they stored stays in the repository until
    it is pruned, which a later release does.
    """
    repository = context.repository()
    names: list[str] = []
    for ref in dict.fromkeys(repository.find(token) for token in snapshots):
        try:
            repository.delete_snapshot(ref)
        except CwError as error:
            error.evidence += [f"deleted before: {name}" for name in names]
            raise
        names.append(f"{ref.job}/{ref.snapshot}")
    context.emit("rm", {"deleted": names}, lambda: click.echo("\n".join(f"deleted {n}" for n in names)))
