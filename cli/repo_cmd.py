"""`cw-snapshot repo`: create a repository."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator.state import require_root
from cw_snapshot.errors import ExitCode, UsageError
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


repo_command.add_command(init_command)
