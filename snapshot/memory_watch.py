"""Watching the memory that is left to a job while its shadows live.

A shadow costs what the job rewrites. When that does not fit, the kernel kills the shadow and not the job
(oom_score_adj 1000), but only after it has slowed the job down by looking for memory; so the shadows are
dropped a little earlier. The snapshot is lost either way, the job is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import cgroups
from cw_snapshot.snapshot.cgroups import MemoryGroup

_RESERVE_PARTS = 32
"""One part in so many of the limit is left to the job ..."""
_LEAST_RESERVE = 16 << 20
_LARGEST_RESERVE = 512 << 20
"""... but so much at least and at most; and no more than half of what it had when it was stopped."""
_FASTEST_WRITER = 8 << 30
"""Bytes a second: more than a few processors can copy on write (about 1 GiB/s each)."""
_LONGEST_WAIT = 0.25
_SHORTEST_WAIT = 0.005


class MemoryShortError(CwError):
    """The memory left to the job ran short while its pages were read, so the shadows were dropped
    before the kernel had to kill anybody; the snapshot is lost, the job runs on.

    Fix: raise the limit, take when the job writes less, or take with `--stop`, which needs no extra
    memory.
    """

    exit_code = ExitCode.LOST


class ShadowKilledForMemoryError(CwError):
    """The job's memory ran out while its pages were read, and the kernel killed a shadow; the snapshot
    is lost, the job runs on.

    Fix: raise the limit, take when the job writes less, or take with `--stop`, which needs no extra
    memory.
    """

    exit_code = ExitCode.LOST


def reserve(at_stop: MemoryGroup) -> int:
    """Headroom, in bytes, below which the shadows are dropped."""
    usual = min(max(at_stop.limit // _RESERVE_PARTS, _LEAST_RESERVE), _LARGEST_RESERVE)
    return min(usual, at_stop.headroom // 2)


def wait_seconds(spare: int) -> float:
    """How long nobody has to look again when `spare` bytes may still be used."""
    return min(_LONGEST_WAIT, max(_SHORTEST_WAIT, spare / _FASTEST_WRITER))


class MemoryWatch:
    """Watches all limits of some processes. Made before they are stopped: what it sees then is compared
    with what comes.

    :param pids: the processes of the job.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._folders = cgroups.folders(pids, "memory")
        self._before = {group.place: group for group in self.look()}
        self._reserve = {place: reserve(group) for place, group in self._before.items()}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._short: MemoryGroup | None = None

    def look(self) -> list[MemoryGroup]:
        """The limits as they are now."""
        return cgroups.memory_groups(self._folders)

    def spare(self) -> int:
        """Bytes that can still be used before the shadows are dropped."""
        return self._tightest()[0]

    def _tightest(self) -> tuple[int, MemoryGroup]:
        spare = ((g.headroom - self._reserve.get(g.place, 0), g) for g in self.look())
        return min(spare, key=lambda pair: pair[0])

    def start(self, drop: Callable[[], None]) -> None:
        """Begin to watch.

        :param drop: called once, when a limit comes near.
        """
        self._thread = threading.Thread(target=self._watch, args=(drop,), name="memory watch", daemon=True)
        self._thread.start()

    def _watch(self, drop: Callable[[], None]) -> None:
        while True:
            spare, tightest = self._tightest()
            if spare < 0:
                self._short = tightest
                drop()
                return
            if self._done.wait(wait_seconds(spare)):
                return

    def close(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def cause(self, error: Exception) -> CwError | None:
        """Whether memory was the cause of an error in reading the shadows."""
        if killed := killed_since(self._before.values(), self.look()):
            return ShadowKilledForMemoryError(evidence=[*killed, str(error)])
        if self._short is not None:
            return MemoryShortError(evidence=[str(self._short)])
        return None


def killed_since(before: Iterable[MemoryGroup], after: Sequence[MemoryGroup]) -> list[str]:
    """The groups in which the kernel has killed meanwhile, as evidence."""
    kills = {group.place: group.oom_kills for group in before}
    return [
        f"{group}, {group.oom_kills - kills[group.place]} killed"
        for group in after
        if group.oom_kills > kills.get(group.place, group.oom_kills)
    ]
