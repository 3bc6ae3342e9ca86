"""What all commands share: context, help with exit status, output in text or JSON, errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cw_snapshot.cli.tables import printable
from cw_snapshot.coordinator.jobs import JobStore
from cw_snapshot.coordinator.settings import Settings, load_settings
from cw_snapshot.coordinator.state import make_private, require_root
from cw_snapshot.errors import CwError, ExitCode, InternalError, UsageError
from cw_snapshot.errors.base import EXIT_MEANING
from cw_snapshot.storage.repository import Repository

if TYPE_CHECKING:
    from cw_snapshot.coordinator.cluster import Cluster


@dataclass(slots=True)
class Context:
    """What every command gets: settings, and the rooms they lead to."""

    settings: Settings
    json: bool = False

    def store(self) -> JobStore:
        require_root()
        make_private(self.settings.state_dir)
        return JobStore(self.settings.state_dir)

    def repository(self) -> Repository:
        require_root()
        if self.settings.repository is None:
            raise UsageError(
                what="no repository was named: give --repo, set CW_SNAPSHOT_REPOSITORY, or write "
                "`repository:` into the configuration file"
            )
        return Repository.open(self.settings.repository)

    def cluster(self) -> Cluster:
        from cw_snapshot.coordinator.cluster import Cluster, NoClusterError

        require_root()
        if self.settings.cluster is None:
            raise NoClusterError()
        return Cluster.load(self.settings.cluster)

    def emit(self, name: str, document: Mapping[str, Any], text: Callable[[], None]) -> None:
        """Print the result: one JSON document, or what `text` prints."""
        if self.json:
            click.echo(json.dumps({"schema": f"cw-snapshot/{name}/1", **document}, indent=1))
        else:
            text()


def note(message: str) -> None:
    """Something about the work, not its result: on stderr."""
    click.echo(_printable_lines(message), err=True)


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


class Command(click.Command):
    """A command whose help ends with its exit status."""

    exit_codes: Sequence[ExitCode] = ()
    meanings: Mapping[ExitCode, str] = EXIT_MEANING

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        codes = sorted({ExitCode.OK, ExitCode.INTERNAL, ExitCode.USAGE, *self.exit_codes})
        with formatter.section("EXIT STATUS"):
            formatter.write_dl([(str(int(code)), self.meanings[code]) for code in codes])
        super().format_epilog(ctx, formatter)


def command(
    name: str,
    *codes: ExitCode,
    cls: type[Command] = Command,
    meanings: Mapping[ExitCode, str] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """Decorator of a command function; `codes` are the exit codes beyond 0, 1, 2 and 9, `meanings`
    what some of them mean for it in particular."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(name, cls=cls, **attributes)(function)
        made.exit_codes = (*codes, ExitCode.NOT_PERMITTED)
        made.meanings = {**EXIT_MEANING, **(meanings or {})}
        return made

    return decorate


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Flags that override settings, and --json. They arrive in the command as a :class:`Context`."""
    known: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        "repository": click.option("--repo", "repository", metavar="PATH", help="The repository."),
        "max_pause": click.option(
            "--max-pause", metavar="DURATION", help="Give up rather than pause the job for longer (5s)."
        ),
        "threads": click.option("--threads", type=int, help="Threads that read, compress and store."),
        "limit_memory": click.option(
            "--limit-memory", metavar="SIZE", help="Memory for buffers (a quarter of what is available)."
        ),
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_context(**values: Any) -> Any:
            overrides = {n: values.pop(n) for n in (*names, "state_dir")}
            config = values.pop("config")
            as_json = values.pop("json")
            context = Context(load_settings(os.environ, overrides, config), as_json)
            return function(context, **values)

        with_context.__doc__ = function.__doc__
        with_context.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        wrapped: Callable[..., Any] = with_context
        wrapped = click.option(
            "--config", type=click.Path(path_type=Path), help="Another configuration file."
        )(wrapped)
        wrapped = click.option(
            "--state-dir", type=click.Path(path_type=Path), help="Another state directory."
        )(wrapped)
        wrapped = click.option("--json", is_flag=True, help="Print one JSON document.")(wrapped)
        for name in names:
            wrapped = known[name](wrapped)
        return wrapped

    return decorate


def report_error(error: CwError, *, as_json: bool) -> int:
    """Tell the user; returns the exit code."""
    if as_json:
        document = {
            "schema": "cw-snapshot/error/1",
            "code": error.code,
            "exit_code": int(error.exit_code),
            "message": error.message,
            "evidence": error.evidence,
            "fix": error.fix,
        }
        click.echo(json.dumps(document, indent=1))
    click.echo(_printable_lines(f"cw-snapshot: {error}"), err=True)
    return int(error.exit_code)


def absolute(path: Path) -> Path:
    """A path that means the same in every folder."""
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise UsageError(what="the current folder does not exist any more; change to another") from error


def unexpected(error: Exception) -> InternalError:
    return InternalError(what=f"{type(error).__name__}: {error}")


def wants_json(arguments: Iterable[str]) -> bool:
    """Whether the command line asks for JSON, also when it could not be parsed."""
    for argument in arguments:
        if argument == "--":
            return False
        if argument == "--json":
            return True
    return False


def arguments() -> list[str]:
    return sys.argv[1:]
