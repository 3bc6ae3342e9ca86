"""Small readings and edits of a skeleton: what criu restores literally and should not."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.images import ImageDamagedError, ImagedTask

_PID_ROOM = 1000
"""Pids that criu, its helpers and the job's next threads may take before they wrap around."""

_U64 = 1 << 64
_RSEQ_BYTES = 32
"""The part of a thread's rseq area that the kernel writes (linux/rseq.h)."""


def pid_floor(used: Collection[int], pid_max: int) -> int:
    """A pid above which criu and its helpers find room that no restored task needs: above the
    highest one, or at the start of the widest gap when that is too near to `pid_max`."""
    highest = max(used)
    if highest + _PID_ROOM < pid_max:
        return highest
    taken = sorted(used)
    _, floor = max((after - before, before) for before, after in pairwise([1, *taken]))
    return floor


def forget_death_signal(folder: Path) -> None:
    """Drop PR_SET_PDEATHSIG of the root: the launcher with which it was to die is not restored,
    and the end of cw-init ends the whole tree anyway."""
    root = images.tasks(folder)[0]
    path = folder / f"core-{root.ns_pid}.img"
    (core,) = images.load(path, "core", "core_entry")
    if core.thread_core.HasField("pdeath_sig"):
        core.thread_core.ClearField("pdeath_sig")
        images.store(path, [core])


def enter_anew(folder: Path, tids: Collection[int]) -> None:
    """Bring the images of threads to where the plugin has brought the threads: to the system call
    that the take interrupted (criu_cow_c/rewind.h; two bytes are `syscall`)."""
    for tid in tids:
        path = folder / f"core-{tid}.img"
        (core,) = images.load(path, "core", "core_entry")
        registers = core.thread_info.gpregs
        if registers.ax != _U64 - errno.EINTR:
            raise ImageDamagedError(path=path, why="its system call was not interrupted")
        registers.ax = registers.orig_ax
        registers.ip -= 2
        images.store(path, [core])


_TASK_ALIVE, _TASK_STOPPED = 1, 3
"""criu/include/proc_parse.h and images/core.proto, task_state."""


def come_back_stopped(folder: Path) -> None:
    """Have every task restored in a stop, so that all of them begin together. Somebody's SIGCONT may have
    set them running between our stop and criu's freeze; they are of one instant all the same."""
    for task in images.tasks(folder):
        path = folder / f"core-{task.ns_pid}.img"
        (core,) = images.load(path, "core", "core_entry")
        if core.tc.task_state == _TASK_ALIVE:
            core.tc.task_state = _TASK_STOPPED
            images.store(path, [core])


def rseq_areas(folder: Path, task: ImagedTask) -> list[tuple[int, int]]:
    """(address, bytes) of every thread's registered rseq area."""
    found = []
    for tid in task.threads:
        path = folder / f"core-{tid}.img"
        if not path.exists():
            continue
        (core,) = images.load(path, "core", "core_entry")
        if core.HasField("thread_core") and core.thread_core.HasField("rseq_entry"):
            address = core.thread_core.rseq_entry.rseq_abi_pointer
            if address:
                found.append((address, _RSEQ_BYTES))
    return found


def outside_pipes(folder: Path, stdio: Mapping[str, str]) -> dict[str, int]:
    """Pipes of the job's stdio whose other end was outside the tree: pipe text -> fd (0, 1, 2).

    :param stdio: link text of fds 0, 1 and 2 of the root at the take.
    """
    ends: dict[int, set[int]] = {}
    for entry in images.load(folder / "files.img", "fdinfo", "file_entry"):
        if entry.HasField("pipe"):
            ends.setdefault(entry.pipe.pipe_id, set()).add(entry.pipe.flags & images.O_ACCMODE)
    found = {}
    for fd, target in stdio.items():
        if target.startswith("pipe:["):
            pipe_id = int(target.removeprefix("pipe:[").removesuffix("]"))
            if len(ends.get(pipe_id, set())) == 1:
                found[target] = int(fd)
    return found


def append_to_log(folder: Path, pipes: Collection[str]) -> None:
    """Give the ends of pipes that become our log O_APPEND: criu sets the flags of its image on
    whatever descriptor it inherits (criu pipes.c, rst_file_params), and two incarnations, or
    stdout and stderr, must not write over one another."""
    path = folder / "files.img"
    entries = images.load(path, "fdinfo", "file_entry")
    for entry in entries:
        if entry.HasField("pipe") and f"pipe:[{entry.pipe.pipe_id}]" in pipes:
            entry.pipe.flags |= os.O_APPEND
    images.store(path, entries)
