"""Work that may wait: page and compression threads take only what the job leaves."""

from __future__ import annotations

import os
from contextlib import suppress

_NICEST = 19


def yield_to_job() -> None:
    """Make the calling thread run only on processors that are idle otherwise (SCHED_IDLE,
    sched(7)); the others keep their priority."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _NICEST)
