"""Joining the small pages of a running job to huge ones, so that the pause gets shorter.

process_madvise(2) with MADV_COLLAPSE (Linux 6.1) makes the kernel copy the 512 small pages of an
aligned 2 MiB range into one huge page, in this thread and at its cost: about 2.5 s per GiB. It
needs CAP_SYS_NICE and the right to trace the process, and ignores the settings of
/sys/kernel/mm/transparent_hugepage, but not a job's own MADV_NOHUGEPAGE.

Memory grows by what a range lacked. Only ranges are collapsed of which the process alone has at
least 3/4 of the pages, so that the collapsed memory grows by a third at the most. Pages that
forked processes still share count as lacking: the collapse would copy them for this process.

The thread that collapses keeps its usual priority: the kernel holds the job's mmap lock for
writing while it copies one range, and a thread that other work holds up would hold up the job.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.job_facts import HUGE_BYTES, is_anonymous
from cw_snapshot.snapshot.pagemap import Pagemap, Runs
from cw_snapshot.snapshot.procfs import PAGE_SIZE, ProcessGoneError
from cw_snapshot.snapshot.tree import Tree

_PROCESS_MADVISE = 440
"""The same number on every architecture."""
_MADV_COLLAPSE = 25
_PAGES = HUGE_BYTES // PAGE_SIZE
LEAST_PAGES = _PAGES * 3 // 4
"""Of a range, so that what is collapsed grows by a third at the most."""
SECONDS_OF_RANGE = 0.0053
"""2 GiB took 5.5 s."""

_libc = ctypes.CDLL(None, use_errno=True)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An aligned range of 2 MiB that is worth a huge page."""

    pid: int
    start: int
    pages: int
    """The process's own, of 512."""

    @property
    def growth_bytes(self) -> int:
        """Memory that the collapse costs at most."""
        return (_PAGES - self.pages) * PAGE_SIZE


@dataclass(slots=True)
class Collapse:
    """What a collapse has done."""

    candidates: int = 0
    """Ranges of 2 MiB that were worth it."""
    collapsed: int = 0
    """Ranges that are huge pages now."""
    growth_bytes: int = 0
    """Memory that this has cost at most."""
    failed: Counter[str] = field(default_factory=Counter)
    """Ranges that the kernel refused, by the name of the error: EINVAL where the job forbids huge
    pages, EAGAIN for pages that are in use or pinned, ENOMEM where no huge page is free."""
    stopped: str = ""
    """Why it ended before all candidates had their turn; empty when they all had."""
    seconds: float = 0.0
    """Of one core; before a collapse those that are expected."""

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate_bytes": self.candidates * HUGE_BYTES,
            "collapsed_bytes": self.collapsed * HUGE_BYTES,
            "growth_bytes": self.growth_bytes,
            "failed": dict(self.failed),
            "stopped": self.stopped,
            "seconds": round(self.seconds, 3),
        }


def populated_ranges(runs: Runs, start: int, end: int) -> list[int]:
    """The aligned ranges inside a mapping of which at least 3/4 are in `runs`."""
    pages: Counter[int] = Counter()
    for begin, size in runs:
        at = begin
        while at < begin + size:
            base = at - at % HUGE_BYTES
            stop = min(base + HUGE_BYTES, begin + size)
            pages[base] += (stop - at) // PAGE_SIZE
            at = stop
    return [
        base
        for base, count in sorted(pages.items())
        if count >= LEAST_PAGES and start <= base and base + HUGE_BYTES <= end
    ]


def planned(candidates: Sequence[Candidate]) -> Collapse:
    """What a collapse would do at the most."""
    growth = sum(c.growth_bytes for c in candidates)
    count = len(candidates)
    return Collapse(candidates=count, growth_bytes=growth, seconds=SECONDS_OF_RANGE * count)


def find(tree: Tree) -> list[Candidate]:
    """What a collapse of a running tree would join. 10 ms per GiB."""
    found: list[Candidate] = []
    for member in tree.living:
        with suppress(ProcessGoneError, PermissionError):
            found += _of_process(member.pid)
    return found


def _of_process(pid: int) -> list[Candidate]:
    found = []
    mappings = [m for m in procfs.mappings(pid) if is_anonymous(m) and m.size >= HUGE_BYTES]
    with Pagemap(pid) as pagemap:
        for mapping in mappings:
            huge = pagemap.huge_pages(mapping.start, mapping.end) or []
            already = {base for at, size in huge for base in range(at, at + size, HUGE_BYTES)}
            runs = pagemap.private_pages(mapping.start, mapping.end)
            for base in populated_ranges(runs, mapping.start, mapping.end):
                if base in already:
                    continue
                pages = int(pagemap.own_pages(base, base + HUGE_BYTES).sum())
                if pages >= LEAST_PAGES:
                    found.append(Candidate(pid, base, pages))
    return found


def _collapse_range(pidfd: int, start: int) -> int:
    """0 or an error number."""
    vector = _IoVec(start, HUGE_BYTES)
    done = _libc.syscall(
        ctypes.c_long(_PROCESS_MADVISE),
        ctypes.c_int(pidfd),
        ctypes.byref(vector),
        ctypes.c_size_t(1),
        ctypes.c_int(_MADV_COLLAPSE),
        ctypes.c_uint(0),
    )
    return 0 if done == HUGE_BYTES else ctypes.get_errno() or errno.EAGAIN


def collapse(
    candidates: Iterable[Candidate],
    *,
    headroom: int,
    limit: timedelta,
    one: Callable[[int, int], int] = _collapse_range,
) -> Collapse:
    """Join what is worth it, until all is done, the time is over or the memory that may be spent is.

    :param headroom: bytes by which the job may grow.
    :param one: collapses the range at an address of a process (pidfd); a test's own.
    """
    begin = time.monotonic()
    waiting = list(candidates)
    done = Collapse(candidates=len(waiting))
    for pid in dict.fromkeys(c.pid for c in waiting):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            for candidate in (c for c in waiting if c.pid == pid):
                if time.monotonic() - begin > limit.total_seconds():
                    done.stopped = f"the time of {limit.total_seconds():.0f} s is over"
                elif done.growth_bytes + candidate.growth_bytes > headroom:
                    done.stopped = "memory is short"
                elif (error := one(pidfd, candidate.start)) == errno.EPERM:
                    done.stopped = "not permitted: CAP_SYS_NICE and CAP_SYS_PTRACE are needed"
                elif error == errno.ESRCH:
                    break
                elif error:
                    done.failed[errno.errorcode.get(error, str(error))] += 1
                else:
                    done.collapsed += 1
                    done.growth_bytes += candidate.growth_bytes
                if done.stopped:
                    break
        finally:
            os.close(pidfd)
        if done.stopped:
            break
    done.seconds = time.monotonic() - begin
    return done
