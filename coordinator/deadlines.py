"""How long each phase may take, from the size of the job. The only place with such numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from cw_snapshot.coordinator.barrier import Phase
from cw_snapshot.snapshot.phases import Limits
from cw_snapshot.snapshot.restore import RestoreLimits

_SECOND = timedelta(seconds=1)

OPEN = 30 * _SECOND
"""criu probes the kernel when it starts: 50 ms, seconds on a loaded machine."""
STOP_TRY = 0.2 * _SECOND
STOP_TRIES = 3
GIVE_UP = 30 * _SECOND
"""For criu to give up cleanly. Longer than any phase: killing criu may harm the job."""
GO = 10 * _SECOND
STOP_GRACE = 10 * _SECOND
"""Between SIGTERM and SIGKILL of `cw-snapshot stop`."""
NETWORK = _SECOND
"""For messages to come and go."""
PAGES = 24 * 3600 * _SECOND
"""Reading and storing pages takes what it takes: the job runs. A node that is lost is noticed by its
stream."""
PLAN = 600 * _SECOND
"""Digests of the job's files are compared."""
HOLD = 300 * _SECOND
"""A rebuilt tree waits for the others, before its pages and after them; then its node ends it."""


@dataclass(frozen=True, slots=True)
class JobSize:
    """What the limits depend on."""

    processes: int
    private_bytes: int


def take_limits(size: JobSize, max_pause: timedelta, *, stop: bool) -> Limits:
    """Limits of a take. With `stop` the job ends anyway and no pause is too long for it."""
    skeleton = 10 * _SECOND + _SECOND * size.processes / 100
    shadow = 5 * _SECOND + _SECOND * size.private_bytes / (1 << 30)
    if not stop:
        skeleton, shadow = min(skeleton, max_pause), min(shadow, max_pause)
    return Limits(
        open=OPEN,
        stop=STOP_TRY,
        stop_tries=STOP_TRIES,
        skeleton=skeleton,
        shadow=shadow,
        hold=shadow,
        give_up=GIVE_UP,
        pause=None if stop else max_pause,
    )


def collapse_limit(candidate_bytes: int) -> timedelta:
    """How long huge pages may be made of so much memory: twice as long as it usually takes."""
    return 5 * _SECOND + 5 * _SECOND * candidate_bytes / (1 << 30)


def restore_limits(size: JobSize) -> RestoreLimits:
    """Limits of a restore."""
    return RestoreLimits(skeleton=30 * _SECOND + _SECOND * size.processes / 20, go=GO)


def take_phases(max_pause: timedelta) -> dict[Phase, timedelta]:
    """How long the coordinator waits for the votes of each phase of a take. A node gives up by itself
    when its tree has stood still for `max_pause`; nobody waits for longer than that for it."""
    return {
        Phase.OPEN: 2 * OPEN,
        Phase.STOP: STOP_TRY * (2 * STOP_TRIES) + NETWORK,
        Phase.SKELETON: max_pause + NETWORK,
        Phase.SHADOW: max_pause + NETWORK,
        Phase.GO: GO + NETWORK,
        Phase.PAGES: PAGES,
    }


def restore_phases() -> dict[Phase, timedelta]:
    """How long the coordinator waits for the votes of each phase of a restore."""
    return {
        Phase.PLAN: PLAN,
        Phase.FETCH: PAGES,
        Phase.SKELETON: HOLD,
        Phase.PAGES: PAGES,
        Phase.GO: 2 * GO + NETWORK,
        Phase.COMPLETE: GO + NETWORK,
    }
