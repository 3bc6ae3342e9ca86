"""Operations for tests of the commands that look at them: recorded as any, but they only wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WAITS = """
import sys, time
from pathlib import Path
from cw_snapshot.coordinator.operations import operation
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import InterruptedBySignalError, ignore_signals, interruptible
from cw_snapshot.coordinator.take import TakeAbortedError

settings = Settings(state_dir=Path(sys.argv[1]))
with interruptible(), operation(settings, "take", sys.argv[2], {}, nodes=["n1", "n2"]) as op:
    op.phase("pages")
    op.progress(25, 100, "n1")
    op.progress(0, 100, "n2")
    if sys.argv[3] == "deaf":
        ignore_signals()
    print(op.id, flush=True)
    try:
        sys.stdin.read(1)
    except InterruptedBySignalError as error:
        raise TakeAbortedError(cause=error.message, fix="take again.") from error
"""


@contextmanager
def running(state: Path, job: str, hears: str = "hears") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An operation's id and its command. It goes on until its stdin says something or ends, or a signal
    comes; a `deaf` one hears no signal, as one that is about to succeed."""
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, state, job, hears],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as command:
        assert command.stdout is not None
        try:
            yield command.stdout.readline().strip(), command
        finally:
            command.kill()
