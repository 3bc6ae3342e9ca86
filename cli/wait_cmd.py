"""`cw-snapshot wait`: wait for the end of a job or an operation."""

from __future__ import annotations

from contextlib import suppress

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.coordinator import abort, cluster_wait
from cw_snapshot.coordinator.cluster_jobs import ClusterJobs
from cw_snapshot.coordinator.jobs import BadIdentityError, JobNotFoundError, JobState, to_json, wait
from cw_snapshot.coordinator.operation_records import OperationNotFoundError, find_operation
from cw_snapshot.errors import CwError, ExitCode


class NothingToWaitForError(CwError):
    """There is no job and no operation {wanted!r}.

    Fix: `cw-snapshot ps --all` lists jobs, `cw-snapshot status --all` operations.
    """

    exit_code = ExitCode.NOT_FOUND


@command(
    "wait",
    ExitCode.REFUSED,
    ExitCode.NOT_FOUND,
    ExitCode.ABORTED,
    meanings={
        ExitCode.OK: "the job ended with status 0, or the operation succeeded; any other status of the job "
        "or operation is passed on",
        ExitCode.REFUSED: "the command of the operation runs on another machine",
        ExitCode.ABORTED: "interrupted, job or operation runs on; or the command of the operation has died",
        ExitCode.NOT_FOUND: "no such job or operation",
    },
)
@settings_options()
@click.argument("what", metavar="JOB|OP")
def wait_command(context: Context, what: str) -> int:
    """Wait until a job or an operation has ended.

    Of a job, exit with its status, 128 + N when signal N ended it; on several nodes with the largest of
    its trees. A job that was killed together with its init has no status; the exit code is then 1.

    Of a take or restore, exit as its command does. OP is the id of an operation or a unique beginning of
    one, `latest`, or `latest:JOB`. A name that is both means the job.
    """
    store = context.store()
    with suppress(JobNotFoundError, BadIdentityError):
        known = ClusterJobs(context.settings.state_dir).find(what)
        if known is not None:
            ended = cluster_wait.wait(context.settings.state_dir, known, context.cluster(), note)
            context.emit("wait", ended.to_json(), lambda: note(f"{what} has ended on all its nodes"))
            return ended.exit_code
        view = wait(store, what)
        context.emit("wait", to_json(view), lambda: note(f"{what} {view.describe()}"))
        return int(ExitCode.INTERNAL) if view.state is JobState.LOST else view.exit_code or 0
    return _operation(context, what)


def _operation(context: Context, wanted: str) -> int:
    try:
        folder = find_operation(context.settings.state_dir, wanted)
    except OperationNotFoundError as error:
        if len(error.evidence) > 1 and "begin so" in error.message:
            raise
        raise NothingToWaitForError(wanted=wanted, evidence=error.evidence) from error
    record = abort.wait(folder)
    document = {
        "operation": folder.name,
        **{key: record.get(key) for key in ("kind", "job", "outcome", "exit_code", "message")},
    }
    context.emit("wait-operation", document, lambda: note(f"{folder.name}: {abort.ended_in(record)}"))
    return int(record.get("exit_code") or 0)
