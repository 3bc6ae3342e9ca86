"""Ending an operation that runs, or waiting for it: through its command, which lets the job go."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import lives
from cw_snapshot.coordinator.operation_records import (
    DIED,
    ELSEWHERE,
    RUNNING,
    is_part,
    read_progress,
    read_record,
    standing,
)
from cw_snapshot.errors import CwError, ExitCode

_POLL = timedelta(milliseconds=200)
_GO_AWAY = timedelta(seconds=5)
"""A command whose operation has ended says so and exits; a program that uses us as a library does not."""


class OperationEndedError(CwError):
    """Operation {operation} has ended already: {outcome}.

    Fix: nothing is left to be aborted; `cw-snapshot status --all` tells of all operations.
    """

    exit_code = ExitCode.REFUSED


class AbortedTooLateError(CwError):
    """Operation {operation} could not be aborted any more: it has succeeded.

    Fix: what it has made can be undone: `cw-snapshot rm` deletes a snapshot, `cw-snapshot stop` ends a job.
    """

    exit_code = ExitCode.REFUSED


class OperationElsewhereError(CwError):
    """Operation {operation} was begun on {host}, and can be seen from there only.

    Fix: run this command on {host}.
    """

    exit_code = ExitCode.REFUSED


class OperationPartError(CwError):
    """{operation} is a node's part of operation {whole}, which has its own command.

    Fix: name {whole}, on the machine where its command runs.
    """

    exit_code = ExitCode.REFUSED


class OperationDiedError(CwError):
    """The command of operation {operation} has died without a word{phase}. {state}

    Fix: `cw-snapshot doctor` tells what is left on this machine, `doctor --fix` puts it right; an agent
    does so when it is started.
    """

    exit_code = ExitCode.ABORTED


_STATE = {
    "take": "Its job goes on: guards and agents see to that. There is no snapshot, unless `list` shows it.",
    "restore": "What it had made is ended by guards and agents, unless all was let go: `ps` tells.",
}


def ended_in(record: dict[str, Any]) -> str:
    """The outcome of an operation that has ended, for people."""
    if record["outcome"] == "ok":
        return "it succeeded"
    return f"{record['outcome']}, exit code {record.get('exit_code', '?')}"


@contextmanager
def _command_of(folder: Path) -> Iterator[tuple[int, bool]]:
    """A pidfd of the command that runs an operation, and whether it runs. When it does not, the operation
    has ended.

    :raises OperationElsewhereError, OperationPartError, OperationDiedError: it can't be reached.
    """
    record = read_record(folder)
    if is_part(folder.name):
        raise OperationPartError(operation=folder.name, whole=folder.name.partition(".")[0])
    fd = -1
    if standing(record) == RUNNING:
        command = record["command"]
        try:
            fd = os.pidfd_open(command["pid"])
        except ProcessLookupError:
            fd = -1
        # The descriptor first: whoever has the pid now is the one that it names.
        if fd >= 0 and not lives(**command):
            os.close(fd)
            fd = -1
    try:
        if fd < 0:
            _outcome(folder)
        yield fd, fd >= 0
    finally:
        if fd >= 0:
            os.close(fd)


def _outcome(folder: Path) -> dict[str, Any]:
    """The record of an operation that has ended.

    :raises OperationElsewhereError, OperationDiedError: it has not, and its command is not here.
    """
    record = read_record(folder)
    stands = standing(record)
    if stands == ELSEWHERE:
        raise OperationElsewhereError(operation=folder.name, host=record["who"]["host"])
    if stands in (DIED, RUNNING, "unknown"):
        phase = read_progress(folder).get("phase")
        raise OperationDiedError(
            operation=folder.name,
            phase=f", in phase {phase}" if phase else "",
            state=_STATE.get(str(record.get("kind")), ""),
            evidence=[f"pid {record.get('command', {}).get('pid', '?')}"],
        )
    return record


def abort(folder: Path) -> dict[str, Any]:
    """Signal the command of an operation, wait until it has ended; returns its record.

    :raises OperationEndedError, AbortedTooLateError: there is nothing to abort any more.
    :raises OperationElsewhereError, OperationPartError, OperationDiedError: its command can't be reached.
    """
    with _command_of(folder) as (command, runs):
        if not runs:
            raise OperationEndedError(operation=folder.name, outcome=ended_in(read_record(folder)))
        with suppress(ProcessLookupError):  # it ends by itself
            signal.pidfd_send_signal(command, signal.SIGTERM)
        _await(folder, command)
    record = _outcome(folder)
    if record["outcome"] == "ok":
        raise AbortedTooLateError(operation=folder.name)
    return record


def wait(folder: Path) -> dict[str, Any]:
    """Wait until an operation has ended; returns its record.

    :raises OperationElsewhereError, OperationPartError, OperationDiedError: its command can't be reached.
    """
    with _command_of(folder) as (command, runs):
        if runs:
            _await(folder, command)
    return _outcome(folder)


def _await(folder: Path, command: int) -> None:
    """Until the command has ended, or has not though its operation has."""
    gone = select.poll()
    gone.register(command, select.POLLIN)
    ended: float | None = None
    while not gone.poll(_POLL.total_seconds() * 1e3):
        if ended is None and standing(read_record(folder)) != RUNNING:
            ended = time.monotonic()
        if ended is not None and time.monotonic() > ended + _GO_AWAY.total_seconds():
            return
