"""The command line: finds the command's file, runs it, turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from cw_snapshot.cli.command import arguments, report_error, unexpected, wants_json
from cw_snapshot.coordinator.limits import raise_descriptor_limit
from cw_snapshot.errors import CwError, ExitCode, SystemFailedError, UsageError

COMMANDS = {
    "doctor": "check this machine",
    "run": "start a job so that it can be snapshotted",
    "ps": "list jobs",
    "logs": "show a job's output",
    "stop": "stop a job",
    "wait": "wait for the end of a job, a take or a restore",
    "take": "take a snapshot of a running job",
    "restore": "bring a job back",
    "status": "list takes and restores",
    "abort": "give up a take or restore that runs",
    "list": "list snapshots",
    "show": "show what is in a snapshot",
    "verify": "check that a snapshot can be read back",
    "rm": "delete snapshots",
    "repo": "create and repair repositories",
    "report": "bundle what a bug report needs",
    "agent": "serve the coordinator on this node",
    "lab": "a virtual cluster on this machine",
}
"""Each command is the attribute `<name>_command` of its module `<name>_cmd`, imported when used."""


class CommandInterruptedError(CwError):
    """interrupted"""

    exit_code = ExitCode.ABORTED


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"cw_snapshot.cli.{name}_cmd")
        found: click.Command = getattr(module, f"{name}_command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("EXIT STATUS"):
            formatter.write_text("See the help of each command: `cw-snapshot COMMAND --help`.")


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="cw-snapshot", prog_name="cw-snapshot")
def main() -> None:
    """Transparent snapshots of running training jobs.

    A snapshot is taken while the job runs; the job pauses for milliseconds and is not changed. It
    can be restored later, at exactly the step where it was.
    """


def run() -> int:
    """Run the command line; returns the exit code."""
    raise_descriptor_limit()
    given = arguments()
    as_json = wants_json(given)
    try:
        outcome = main.main(given, prog_name="cw-snapshot", standalone_mode=False)
        sys.stdout.flush()
        return int(outcome) if isinstance(outcome, int) else int(ExitCode.OK)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        if as_json:
            return report_error(UsageError(what=error.format_message()), as_json=True)
        error.show()
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return report_error(CommandInterruptedError(), as_json=as_json)
    except BrokenPipeError:
        # Our reader has gone; nothing more can be said to it, also not at exit.
        _drop_output()
        return int(ExitCode.OK)
    except CwError as error:
        return report_error(error, as_json=as_json)
    except OSError as error:
        if "CW_SNAPSHOT_TRACEBACK" in os.environ:
            traceback.print_exc()
        try:
            sys.stdout.flush()
        except OSError:  # it was stdout that failed
            _drop_output()
        return report_error(SystemFailedError(error), as_json=as_json)
    except Exception as error:
        traceback.print_exc()
        return report_error(unexpected(error), as_json=as_json)


def _drop_output() -> None:
    """Let what stdout still holds, and what follows, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
