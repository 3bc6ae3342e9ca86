"""The shadow journal, as the controller sees it; the C side is criu_cow_c/journal.h and the
format docs/internals/shadow-journal.md."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode

_MAGIC = b"CWJRNL01"
_VERSION = 2
_HEADER = struct.Struct("<8sIIIIIIiIQQIIQQ40sIIII")
_HEADER_BYTES = _HEADER.size
_ENTRY = struct.Struct("<iiiiiiQQQQ")
_ENTRY_BYTES = 512
_THREAD = struct.Struct("<iiiI")
_THREAD_ROOM = 1 << 17
"""Threads that the file has room for. Those of a larger job are left as they are."""
_ANEW = 1
_COUNT_AT = 12
_DECISION_AT = 16
_PHASE_AT = 20
_THREADS_AT = 128
_U32 = struct.Struct("<I")


class TooManyProcessesError(CwError):
    """The job has grown to {found} processes, more than the {room} that were prepared for; it
    runs on.

    Fix: take again.
    """

    exit_code = ExitCode.ABORTED


class Decision(IntEnum):
    """What the plugin is to do when criu lets go."""

    NONE = 0
    MAKE = 1


class Phase(IntEnum):
    """Where the plugin stands."""

    IDLE = 0
    MAKING = 1
    HOLDING = 2
    DONE = 3


class State(IntEnum):
    """What has been done to one task."""

    PENDING = 0
    DIRTY = 1
    """Its registers, signal mask or text are not the job's own: it must not run."""
    SHADOWED = 2
    FAILED = 3


class Step(IntEnum):
    """Where the shadow maker stands, or failed; also names an injected fault."""

    NONE = 0
    PREPARE = 1
    MIDDLE = 2
    SHADOW = 3
    DETACH = 4
    REAP = 5
    RESTORE = 6


@dataclass(frozen=True, slots=True)
class Fault:
    """Test switch: make the shadow maker fail at a step with an errno."""

    step: Step
    errno: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of one task. Pids are those of its own pid namespace."""

    pid: int
    state: State
    step: Step
    errno: int
    shadow: int
    clone_seconds: float

    @property
    def reason(self) -> str:
        step = self.step.name.lower() if self.step else "not tried"
        return f"{step}: {os.strerror(self.errno)}"


@dataclass(frozen=True, slots=True)
class PluginStats:
    """What the library inside criu did, for reports, tests and benchmarks."""

    shadow_seconds: float
    """From the first to the last shadow."""
    smaps_made: int
    """Lists of mappings that criu got without a page walk."""
    smaps_real: int
    scans_answered: int
    """Page scans answered without a walk."""
    scans_walked: int
    reads_answered: int
    """The same for reads of the pagemap file, which take the place of scans before kernel 6.7."""
    reads_walked: int


class Journal:
    """A journal file shared with the plugin inside criu.

    It lies on a file system, not in anonymous memory, so that a repair finds it after every
    process of ours has died.

    :param room: the most processes that it may have to hold.
    :param hold: the longest time for which the plugin may hold tasks.
    """

    def __init__(self, path: Path, room: int, *, hold: timedelta, fault: Fault | None = None) -> None:
        self._path = path
        self._room = room
        size = self._at(room) + _THREAD.size * _THREAD_ROOM
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Not only its size: where the tmpfs is full, a store into a hole is a SIGBUS for criu.
            os.posix_fallocate(self._fd, 0, size)
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        hold_ms = int(hold.total_seconds() * 1000)
        step, errno = (fault.step, fault.errno) if fault else (0, 0)
        head = (_MAGIC, _VERSION, 0, Decision.NONE, Phase.IDLE, hold_ms, step, errno)
        _HEADER.pack_into(self._map, 0, *head, room, *[0] * 6, b"", *[0] * 4)

    def make_shadows_of(
        self, ns_pids: Sequence[int], threads: Sequence[tuple[int, int]] = (), *, refuse: int = 0
    ) -> None:
        """Decide: the plugin is to make a shadow of each of these tasks.

        :param threads: (pid, tid) of those whose interrupted calls may be entered anew, those of one
            process in a row.
        :param refuse: an errno: make none, and hold the tasks so that their pages can be copied.
        :raises TooManyProcessesError: there is no room for them.
        """
        if len(ns_pids) > self._room:
            raise TooManyProcessesError(found=len(ns_pids), room=self._room)
        for index, pid in enumerate(ns_pids):
            _ENTRY.pack_into(self._map, self._at(index), pid, State.PENDING, Step.NONE, refuse, *[0] * 6)
        for index, (pid, tid) in enumerate(threads[:_THREAD_ROOM]):
            _THREAD.pack_into(self._map, self._thread_at(index), pid, tid, 0, 0)
        _U32.pack_into(self._map, _THREADS_AT, min(len(threads), _THREAD_ROOM))
        _U32.pack_into(self._map, _COUNT_AT, len(ns_pids))
        _U32.pack_into(self._map, _DECISION_AT, Decision.MAKE)

    def _at(self, index: int) -> int:
        return _HEADER_BYTES + _ENTRY_BYTES * index

    def _thread_at(self, index: int) -> int:
        return self._at(self._room) + _THREAD.size * index

    def entered_anew(self) -> list[int]:
        """Threads that enter their system call anew."""
        count = _U32.unpack_from(self._map, _THREADS_AT)[0]
        found = [_THREAD.unpack_from(self._map, self._thread_at(index)) for index in range(count)]
        return [tid for _, tid, state, _ in found if state == _ANEW]

    @property
    def fd(self) -> int:
        """Descriptor to pass to criu."""
        return self._fd

    @property
    def phase(self) -> Phase:
        return Phase(_U32.unpack_from(self._map, _PHASE_AT)[0])

    def entries(self) -> list[Entry]:
        out = []
        for index in range(_U32.unpack_from(self._map, _COUNT_AT)[0]):
            pid, state, step, errno, _, shadow, _, _, _, clone_ns = _ENTRY.unpack_from(
                self._map, self._at(index)
            )
            out.append(Entry(pid, State(state), Step(step), errno, shadow, clone_ns / 1e9))
        return out

    @property
    def stats(self) -> PluginStats:
        begin, end, *counts = _HEADER.unpack_from(self._map, 0)[9:-2]
        del counts[4]  # criu's id
        return PluginStats(max(0, end - begin) / 1e9, *counts)

    def close(self) -> None:
        """Remove the journal; no task may be dirty any more."""
        self._map.close()
        os.close(self._fd)
        self._path.unlink(missing_ok=True)
