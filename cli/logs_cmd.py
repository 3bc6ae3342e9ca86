"""`cw-snapshot logs`: show a job's output."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator.jobs import JobStore, LogGoneError, follow
from cw_snapshot.errors import ExitCode, UsageError

_POLL = timedelta(milliseconds=100)


@command(
    "logs",
    ExitCode.NOT_FOUND,
    ExitCode.ABORTED,
    meanings={ExitCode.ABORTED: "interrupted; the job runs on"},
)
@settings_options()
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until the job has ended.")
@click.argument("job")
def logs_command(context: Context, following: bool, job: str) -> None:
    """Print the stdout and stderr of JOB."""
    if following and context.json:
        raise UsageError(what="--json is one document, and --follow has no end; give one of them")
    store = context.store()
    path = Path(store.find(job).record.log)
    try:
        _print(context, store, job, path, following=following)
    except FileNotFoundError as error:
        raise LogGoneError(path=path, job=job) from error


def _print(context: Context, store: JobStore, job: str, path: Path, *, following: bool) -> None:
    if context.json:
        text = path.read_text(errors="replace")
        context.emit("logs", {"job": job, "path": str(path), "output": text}, lambda: None)
        return
    if not following:
        sys.stdout.buffer.write(path.read_bytes())
        return
    for block in follow(path, store, job, _POLL):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
