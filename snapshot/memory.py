"""Reading a process's private memory, and pouring it into a restored one.

Both go through /proc/PID/mem, which reads mappings without read permission and writes read-only
private ones (FOLL_FORCE): relocated library data needs that.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.images import Vma
from cw_snapshot.snapshot.pagemap import Pagemap, Runs, join

_ZERO_BYTES = 1 << 20


class MemoryUnreadableError(CwError):
    """Memory of process {pid} at {address:#x} could not be read: {why}.

    Fix: take again; if it happens again, report it with `cw-snapshot show` of an earlier snapshot.
    """

    exit_code = ExitCode.LOST


class PourFailedError(CwError):
    """A page at {address:#x} could not be written into restored process {pid}: {why}.

    Fix: `cw-snapshot doctor` tells whether this kernel allows forced writes to /proc/PID/mem.
    """

    exit_code = ExitCode.ABORTED


def _read_fully(fd: int, start: int, buffer: memoryview, pid: int) -> None:
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(fd, [buffer[done:]], start + done)
        except OSError as error:
            raise MemoryUnreadableError(pid=pid, address=start + done, why=error.strerror) from error
        if count == 0:  # no address space any more: the process is dead
            raise MemoryUnreadableError(pid=pid, address=start + done, why="the process has died")
        done += count


@dataclass(frozen=True, slots=True)
class SavedRegion:
    """Content of a mapping that a shadow can't hold, read while the task was stopped."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


Spans = Sequence[tuple[int, int]]
"""(start, end) of mappings."""


def save_regions(pid: int, spans: Spans) -> list[SavedRegion]:
    """Read the private pages of some mappings of a stopped process."""
    regions = []
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with Pagemap(pid) as pagemap:
            for begin, end in spans:
                for start, size in pagemap.private_pages(begin, end):
                    data = bytearray(size)
                    _read_fully(fd, start, memoryview(data), pid)
                    regions.append(SavedRegion(start, bytes(data)))
    finally:
        os.close(fd)
    return regions


class ProcessPages:
    """The private pages of one process, for the repository (its PageSource).

    :param pid: where to read: a shadow, or the stopped process itself.
    :param spans: the mappings to read from there.
    :param saved: pages read earlier; they take the place of what `pid` has there.
    :param still_valid: asked after the last read; False means that what was read can't be trusted.
    :param release: called when the pages are no longer needed.
    """

    def __init__(
        self,
        pid: int,
        spans: Spans,
        *,
        saved: Sequence[SavedRegion] = (),
        still_valid: Callable[[], bool] = lambda: True,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._pid = pid
        self._saved = sorted(saved, key=lambda r: r.start)
        self._saved_starts = [r.start for r in self._saved]
        self._still_valid = still_valid
        self._release = release
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        with Pagemap(pid) as pagemap:
            here = [run for span in spans for run in pagemap.private_pages(*span)]
        self._runs: Runs = sorted(join(here) + [(r.start, len(r.data)) for r in self._saved])

    def runs(self) -> Runs:
        return self._runs

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self._runs)

    def read_into(self, start: int, buffer: memoryview) -> None:
        at, end = start, start + len(buffer)
        while at < end:
            index = bisect_right(self._saved_starts, at) - 1
            if index >= 0 and at < self._saved[index].end:
                region = self._saved[index]
                stop = min(end, region.end)
                buffer[at - start : stop - start] = region.data[at - region.start : stop - region.start]
            else:
                following = self._saved_starts[index + 1] if index + 1 < len(self._saved) else end
                stop = min(end, following)
                _read_fully(self._fd, at, buffer[at - start : stop - start], self._pid)
            at = stop

    def finish(self) -> None:
        valid = self._still_valid()
        self.close()
        if not valid:
            raise MemoryUnreadableError(pid=self._pid, address=0, why="its shadow died while it was read")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._release()


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of a restored process that must stay as criu and the kernel made them."""

    start: int
    size: int


class ProcessSink:
    """A restored process that criu still holds, into which pages are poured (its PageSink).

    :param mem: path of its `mem` file.
    :param mappings: its mappings, from the images.
    :param kept: areas to leave alone: each thread's rseq area, which the kernel writes.
    """

    def __init__(self, pid: int, mem: str, mappings: Sequence[Vma], kept: Sequence[Kept] = ()) -> None:
        self._pid = pid
        self._fd = os.open(mem, os.O_WRONLY | os.O_CLOEXEC)
        self._mappings = list(mappings)
        self._starts = [v.start for v in self._mappings]
        self._kept = sorted(kept, key=lambda k: k.start)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, start: int, data: memoryview | bytes) -> None:
        view = memoryview(data)
        done = 0
        while done < len(view):
            try:
                count = os.pwrite(self._fd, view[done:], start + done)
            except OSError as error:
                why = "no such mapping" if error.errno == errno.EIO else error.strerror
                raise PourFailedError(pid=self._pid, address=start + done, why=why) from error
            if count == 0:
                raise PourFailedError(pid=self._pid, address=start + done, why="the process has died")
            done += count

    def write(self, start: int, data: memoryview) -> None:
        end, at = start + len(data), start
        for kept in self._kept:
            if kept.start >= end or kept.start + kept.size <= at:
                continue
            if kept.start > at:
                self._write(at, data[at - start : kept.start - start])
            at = kept.start + kept.size
        if at < end:
            self._write(at, data[at - start :])

    def zero(self, start: int, nbytes: int) -> None:
        """A new anonymous mapping is zero already; a private file mapping shows its file there,
        so zeros must be written (research: a zeroed page came back with the file's bytes)."""
        end = start + nbytes
        index = max(bisect_right(self._starts, start) - 1, 0)
        while start < end and index < len(self._mappings):
            vma = self._mappings[index]
            stop = min(end, vma.end)
            if start < stop:
                if not vma.anonymous:
                    self._write_zeros(start, stop)
                start = stop
            index += 1

    def _write_zeros(self, start: int, end: int) -> None:
        zeros = memoryview(bytes(min(end - start, _ZERO_BYTES)))
        while start < end:
            size = min(end - start, len(zeros))
            self.write(start, zeros[:size])
            start += size
