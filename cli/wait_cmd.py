"""`cw-snapshot wait`: wait for the end of a job."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.coordinator.jobs import JobState, to_json, wait
from cw_snapshot.errors import ExitCode


@command(
    "wait",
    ExitCode.NOT_FOUND,
    ExitCode.ABORTED,
    meanings={
        ExitCode.ABORTED: "interrupted; the job runs on",
        ExitCode.OK: "the job ended with status 0; any other status of the job is passed on",
    },
)
@settings_options()
@click.argument("job")
def wait_command(context: Context, job: str) -> int:
    """Wait until JOB has ended and exit with its status, 128 + N when signal N ended it.

    A job that was killed together with its init has no status; the exit code is then 1.
    """
    view = wait(context.store(), job)
    context.emit("wait", to_json(view), lambda: note(f"{job} {view.describe()}"))
    return int(ExitCode.INTERNAL) if view.state is JobState.LOST else view.exit_code or 0
