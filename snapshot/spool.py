"""Sources for the repository that are not a living process: files, and pages copied aside."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from typing import Protocol

from cw_snapshot.snapshot.memory import ProcessPages
from cw_snapshot.snapshot.pagemap import Runs
from cw_snapshot.snapshot.procfs import PAGE_SIZE

_COPY_BYTES = 8 << 20


class Source(Protocol):
    """What every source here offers; the repository's PageSource, structurally."""

    def runs(self) -> Runs: ...
    def read_into(self, start: int, buffer: memoryview) -> None: ...
    def finish(self) -> None: ...


class FileBytes:
    """A file as a source: its bytes from offset 0, the last page filled up with zeros.

    It is open from the first read to `finish`: a tree of 150 processes has 2000 images.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.size = path.stat().st_size

    def runs(self) -> Runs:
        pages = -(-self.size // PAGE_SIZE)
        return [(0, pages * PAGE_SIZE)] if pages else []

    def read_into(self, start: int, buffer: memoryview) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], start + done)
            if count == 0:
                if start + done < self.size:
                    raise OSError(f"file became shorter than {self.size} bytes while it was read")
                buffer[done:] = bytes(len(buffer) - done)
                return
            done += count

    def finish(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CopiedPages:
    """The pages of a process, copied into memory of ours while it was stopped: what is used when
    a shadow can't be made. The stop is as long as the copying takes, at about 1 GiB/s."""

    def __init__(self, pages: ProcessPages) -> None:
        self._runs = pages.runs()
        self._starts = [start for start, _ in self._runs]
        self._offsets = []
        self._fd = os.memfd_create("cw-pages", os.MFD_CLOEXEC)
        buffer = memoryview(bytearray(_COPY_BYTES))
        offset = 0
        for start, size in self._runs:
            self._offsets.append(offset)
            for at in range(start, start + size, _COPY_BYTES):
                part = buffer[: min(_COPY_BYTES, start + size - at)]
                pages.read_into(at, part)
                written = 0
                while written < len(part):
                    written += os.pwrite(self._fd, part[written:], offset + at - start + written)
            offset += size
        pages.finish()

    def runs(self) -> Runs:
        return self._runs

    def read_into(self, start: int, buffer: memoryview) -> None:
        index = bisect_right(self._starts, start) - 1
        offset = self._offsets[index] + start - self._starts[index]
        done = 0
        while done < len(buffer):
            done += os.preadv(self._fd, [buffer[done:]], offset + done)

    def finish(self) -> None:
        os.close(self._fd)
