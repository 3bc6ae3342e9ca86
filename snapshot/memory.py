"""Reading a process's private memory, and pouring it into a restored one."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.images import Vma
from cw_snapshot.snapshot.pagemap import Pagemap, Runs, addresses_of, join, runs_of
from cw_snapshot.snapshot.vm_io import Buffer, ProcessMemory

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


def _read(memory: ProcessMemory, start: int, buffer: memoryview) -> None:
    try:
        memory.read_into(start, buffer)
    except OSError as error:
        raise MemoryUnreadableError(pid=memory.pid, address=start, why=error.strerror) from error


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
    memory = ProcessMemory(pid)
    try:
        with Pagemap(pid) as pagemap:
            for begin, end in spans:
                for start, size in pagemap.private_pages(begin, end):
                    data = bytearray(size)
                    _read(memory, start, memoryview(data))
                    regions.append(SavedRegion(start, bytes(data)))
    finally:
        memory.close()
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
        self._memory = ProcessMemory(pid)
        with Pagemap(pid) as pagemap:
            here = [run for span in spans for run in pagemap.private_pages(*span)]
        self._here = join(here)

    def runs(self) -> Runs:
        return sorted(self._here + [(r.start, len(r.data)) for r in self._saved])

    def read_from_process(self) -> Runs:
        """The runs that are not saved ones."""
        return self._here

    def leave_out(self, addresses: npt.NDArray[np.uint64]) -> None:
        """Pages, read from the process, that are stored with another source."""
        pages = addresses_of(self._here)
        self._here = runs_of(pages[~np.isin(pages, addresses, assume_unique=True)])

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.runs())

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
                _read(self._memory, at, buffer[at - start : stop - start])
            at = stop

    def finish(self) -> None:
        valid = self._still_valid()
        self.close()
        if not valid:
            raise MemoryUnreadableError(pid=self._pid, address=0, why="its shadow died while it was read")

    def close(self) -> None:
        self._memory.close()
        self._release()


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of a restored process that must stay as criu and the kernel made them."""

    start: int
    size: int


class ProcessSink:
    """A restored process that criu still holds, into which pages are poured (its PageSink).

    :param pid: as we see it.
    :param mappings: its mappings, from the images.
    :param kept: areas to leave alone: each thread's rseq area, which the kernel writes.
    """

    def __init__(self, pid: int, mappings: Sequence[Vma], kept: Sequence[Kept] = ()) -> None:
        self._memory = ProcessMemory(pid, writable=True)
        self._mappings = list(mappings)
        self._starts = [v.start for v in self._mappings]
        self._kept = sorted(kept, key=lambda k: k.start)

    def close(self) -> None:
        self._memory.close()

    def write(self, start: int, parts: Sequence[Buffer]) -> None:
        end = start + sum(map(len, parts))
        if any(k.start < end and start < k.start + k.size for k in self._kept):
            self._write_around(start, memoryview(b"".join(parts)))
        else:
            self._write(start, parts)

    def _write(self, start: int, parts: Sequence[Buffer]) -> None:
        try:
            self._memory.write(start, parts)
        except OSError as error:
            why = "no such mapping" if error.errno == errno.EIO else error.strerror
            raise PourFailedError(pid=self._memory.pid, address=start, why=why) from error

    def _write_around(self, start: int, data: memoryview) -> None:
        """Write all but the bytes that are kept."""
        end, at = start + len(data), start
        for kept in self._kept:
            if kept.start >= end or kept.start + kept.size <= at:
                continue
            if kept.start > at:
                self._write(at, [data[at - start : kept.start - start]])
            at = kept.start + kept.size
        if at < end:
            self._write(at, [data[at - start :]])

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
            self.write(start, [zeros[:size]])
            start += size
