"""Small streams in memory: a source from bytes, a sink into bytes."""

from __future__ import annotations

from collections.abc import Sequence

from cw_snapshot.storage.pages import Bytes, round_up


class BytesSource:
    """A `PageSource` over bytes: a small file. Give `len(data)` as the stream's size."""

    def __init__(self, data: Bytes) -> None:
        self._data = memoryview(data).cast("B")

    def runs(self) -> Sequence[tuple[int, int]]:
        return [(0, round_up(len(self._data)))] if len(self._data) else []

    def read_into(self, start: int, buffer: memoryview) -> None:
        part = self._data[start : start + len(buffer)]
        buffer[: len(part)] = part
        buffer[len(part) :] = bytes(len(buffer) - len(part))

    def finish(self) -> None:
        pass


class BytesSink:
    """A `PageSink` for a file of `size` bytes; pages that never come are zeros."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._data = bytearray(size)

    def write(self, start: int, parts: Sequence[Bytes]) -> None:
        for part in parts:
            kept = part[: self._size - start]
            self._data[start : start + len(kept)] = kept
            start += len(part)

    def zero(self, start: int, nbytes: int) -> None:
        pass  # it was made of zeros, and each page comes at most once

    def value(self) -> bytes:
        return bytes(self._data)
