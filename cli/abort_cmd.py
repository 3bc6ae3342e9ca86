"""`cw-snapshot abort`: end an operation that runs."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator.abort import abort, ended_in
from cw_snapshot.coordinator.operation_records import find_operation
from cw_snapshot.errors import ExitCode


@command(
    "abort",
    ExitCode.REFUSED,
    ExitCode.ABORTED,
    ExitCode.NOT_FOUND,
    meanings={
        ExitCode.OK: "the operation was given up, and has ended",
        ExitCode.REFUSED: "it has ended already, or its command runs on another machine",
        ExitCode.ABORTED: "its command has died; or interrupted while waiting for its end",
        ExitCode.NOT_FOUND: "no such operation",
    },
)
@settings_options()
@click.argument("operation", metavar="OP")
def abort_command(context: Context, operation: str) -> None:
    """Give up a take or restore that runs, and wait until it has ended.

    OP is the id of an operation or a unique beginning of one, `latest`, or `latest:JOB`. A job that is
    taken runs on; what a restore has made is ended, on all nodes. Its command is told so by SIGTERM, and
    ends as if that had come from a terminal.
    """
    context.store()
    folder = find_operation(context.settings.state_dir, operation)
    record = abort(folder)
    document = {
        "operation": folder.name,
        **{key: record.get(key) for key in ("kind", "job", "outcome", "exit_code", "phase", "message")},
    }
    text = f"{folder.name} of job {record['job']} was given up in phase {record['phase']}: {ended_in(record)}"
    context.emit("abort", document, lambda: click.echo(text))
