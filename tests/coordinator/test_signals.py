"""Signals while an operation works, and while it cleans up."""

from __future__ import annotations

import os
import signal

import pytest

from cw_snapshot.coordinator.signals import InterruptedBySignalError, ignore_signals, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_until_cleaning_up_begins(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(InterruptedBySignalError, match=number.name), interruptible():
        os.kill(os.getpid(), number)
    with interruptible():
        ignore_signals()
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
