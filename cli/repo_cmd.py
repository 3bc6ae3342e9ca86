"""`cw-snapshot repo`: create a repository."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator.state import require_root
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.storage.rebuild import rebuild_index
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.urls import open_backend


class _RepoGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("EXIT STATUS"):
            formatter.write_text("See the help of each command: `cw-snapshot repo COMMAND --help`.")


@click.group("repo", cls=_RepoGroup)
def repo_command() -> None:
    """Create and look after repositories."""


@command("init", ExitCode.UNREACHABLE)
@settings_options("repository")
def init_command(context: Context) -> None:
    """Create an empty repository. `take` never creates one."""
    require_root()
    url = context.settings.repository
    if url is None:
        raise UsageError(what="no repository was named: give --repo")
    repository = Repository.init(open_backend(url, create=True))
    document = {"repository": url, "id": repository.config.repository_id}
    context.emit("repo-init", document, lambda: click.echo(f"created repository {url}"))
    if not context.json:
        click.echo(
            "Memory images hold secrets: whoever reads this repository reads the memory of the jobs in it.",
            err=True,
        )


@command("repair-index", ExitCode.INTEGRITY, ExitCode.UNREACHABLE)
@settings_options("repository")
def repair_index_command(context: Context) -> int:
    """Make the index anew from the packs, and delete its damaged parts.

    May be interrupted and repeated, and may run beside a take.
    """
    result = rebuild_index(context.repository())
    document = {
        "index": result.index,
        "packs": result.packs,
        "removed": list(result.removed),
        "problems": [str(problem) for problem in result.problems],
    }

    def text() -> None:
        click.echo(f"{result.packs} packs indexed, {len(result.removed)} damaged parts removed")
        for problem in result.problems:
            click.echo(str(problem))

    context.emit("repo-repair-index", document, text)
    return int(ExitCode.INTEGRITY) if result.problems else 0


repo_command.add_command(init_command)
repo_command.add_command(repair_index_command)
