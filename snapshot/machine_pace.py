"""Measuring how fast this machine does what a pause is made of, in about 120 ms.

Each figure is the best of several tries: a try that others disturb is longer, none is shorter.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from cw_snapshot.snapshot.predict import Pace
from cw_snapshot.snapshot.procfs import PAGE_SIZE

_FORK_BYTES = 128 << 20
_WRITE_BYTES = 8 << 20
_FORK_TRIES = 5
_WRITE_TRIES = 3
_LOOK_TRIES = 5
_LOOKS = 100


def measure() -> Pace:
    """The pace of this machine.

    :raises OSError: no process can be started, or no memory is left for it.
    """
    empty = _best(_FORK_TRIES, _fork)
    with mmap.mmap(-1, _FORK_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, _FORK_BYTES, PAGE_SIZE):
            memory[at] = 1
        filled = _best(_FORK_TRIES, _fork)
    return Pace(
        page_seconds=max(filled - empty, 0.0) / (_FORK_BYTES // PAGE_SIZE),
        byte_seconds=_best(_WRITE_TRIES, _write) / _WRITE_BYTES,
        look_seconds=_best(_LOOK_TRIES, _look) / _LOOKS,
        cores=cores(),
        measured=True,
    )


def cores() -> int:
    """Processors that may be used."""
    return len(os.sched_getaffinity(0))


def _best(tries: int, work: Callable[[], float]) -> float:
    return min(work() for _ in range(tries))


def _fork() -> float:
    """Seconds of a fork of this process."""
    begin = time.perf_counter()
    pid = os.fork()
    if not pid:
        os._exit(0)
    forked = time.perf_counter()
    os.waitpid(pid, 0)
    return forked - begin


def _write() -> float:
    """Seconds of writing a new file in memory."""
    data = bytes(_WRITE_BYTES)
    fd = os.memfd_create("cw-pace", os.MFD_CLOEXEC)
    try:
        begin = time.perf_counter()
        os.write(fd, data)
        return time.perf_counter() - begin
    finally:
        os.close(fd)


def _look() -> float:
    """Seconds of looking at a process in /proc, which stands for criu's many small questions."""
    begin = time.perf_counter()
    for _ in range(_LOOKS):
        fd = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        os.read(fd, PAGE_SIZE)
        os.close(fd)
    return time.perf_counter() - begin
