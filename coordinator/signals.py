"""Turning signals into an exception, once, so that an operation can undo what it has begun."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cw_snapshot.errors import CwError, ExitCode

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedBySignalError(CwError):
    """Interrupted by {name}."""

    exit_code = ExitCode.ABORTED


def ignore_signals() -> None:
    """From now on, until :func:`interruptible` ends, no signal interrupts: it is called when cleaning
    up begins."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first SIGINT, SIGTERM or SIGHUP raises :class:`InterruptedBySignalError` in the
    main thread; later ones are ignored, so that cleaning up is not interrupted in its turn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def first(number: int, _: FrameType | None) -> None:
        ignore_signals()
        raise InterruptedBySignalError(name=signal.Signals(number).name)

    for number in _SIGNALS:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
