"""Reading and pouring memory, with this process as the one that is read and poured into."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.images import Vma
from cw_snapshot.snapshot.memory import (
    Kept,
    MemoryUnreadableError,
    PourFailedError,
    ProcessPages,
    ProcessSink,
    SavedRegion,
)
from cw_snapshot.snapshot.vm_io import ProcessMemory

PAGE = 4096
PRIVATE = mmap.MAP_PRIVATE

_libc = ctypes.CDLL(None, use_errno=True)


class Area:
    """A mapping whose address is known."""

    def __init__(self, pages: int, path: Path | None = None) -> None:
        self.size = pages * PAGE
        if path is None:
            self.map = mmap.mmap(-1, self.size, PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), self.size, PRIVATE)
        self._export = ctypes.c_char.from_buffer(self.map)
        self.start = ctypes.addressof(self._export)
        self.end = self.start + self.size

    def protect(self, page: int, prot: int) -> None:
        address = ctypes.c_void_p(self.start + page * PAGE)
        assert _libc.mprotect(address, ctypes.c_size_t(PAGE), prot) == 0

    def vma(self, status: int = images.VMA_ANON_PRIVATE) -> Vma:
        return Vma(self.start, self.end, 3, PRIVATE, status, 0)


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    opened = ProcessMemory(os.getpid(), writable=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("protection", [mmap.PROT_READ, 0])
def test_write_goes_on_behind_what_may_not_be_written(memory: ProcessMemory, protection: int) -> None:
    """The fast call stops at a protected page, in the middle of a part; nothing may be left out."""
    area = Area(4)
    area.protect(2, protection)
    parts = [b"a" * PAGE, b"b" * (PAGE + 100), b"c" * (2 * PAGE - 100)]
    memory.write(area.start, parts)
    area.protect(2, mmap.PROT_READ | mmap.PROT_WRITE)
    assert area.map[:] == b"".join(parts)


def test_more_parts_than_one_call_takes(memory: ProcessMemory) -> None:
    area = Area(2)
    parts = [bytes([n % 251]) * 4 for n in range(2 * PAGE // 4)]
    memory.write(area.start, parts)
    assert area.map[:] == b"".join(parts)


def test_reading_what_has_no_read_permission() -> None:
    area = Area(3)
    area.map[:] = b"x" * area.size
    area.protect(1, 0)
    reader = ProcessMemory(os.getpid())
    buffer = bytearray(area.size)
    reader.read_into(area.start, memoryview(buffer))
    reader.close()
    area.protect(1, mmap.PROT_READ | mmap.PROT_WRITE)
    assert buffer == b"x" * area.size


def test_saved_pages_take_the_place_of_what_is_there() -> None:
    area = Area(4)
    area.map[:] = b"n" * area.size
    saved = [SavedRegion(area.start + PAGE, b"s" * PAGE)]
    outside = [(area.start, area.start + PAGE), (area.start + 2 * PAGE, area.end)]
    released = []
    pages = ProcessPages(os.getpid(), outside, saved=saved, release=lambda: released.append(True))
    assert pages.bytes == area.size
    buffer = bytearray(area.size)
    pages.read_into(area.start, memoryview(buffer))
    assert buffer == b"n" * PAGE + b"s" * PAGE + b"n" * 2 * PAGE
    pages.finish()
    assert released


def test_what_was_read_from_a_dead_shadow_does_not_count() -> None:
    area = Area(1)
    pages = ProcessPages(os.getpid(), [(area.start, area.end)], still_valid=lambda: False)
    with pytest.raises(MemoryUnreadableError, match="its shadow died"):
        pages.finish()


@pytest.mark.parametrize("span", [(0, 3 * PAGE), (PAGE, PAGE), (PAGE - 8, 2 * PAGE)])
def test_kept_bytes_stay(span: tuple[int, int]) -> None:
    """A thread's rseq area is the kernel's while criu holds the thread."""
    start, size = span
    area = Area(3)
    area.map[:] = b"k" * area.size
    kept = [Kept(area.start + PAGE + 64, 32), Kept(area.start + 2 * PAGE - 32, 32)]
    sink = ProcessSink(os.getpid(), [area.vma()], kept)
    sink.write(area.start + start, [b"w" * (size // 2), b"w" * (size - size // 2)])
    sink.close()
    expected = bytearray(b"k" * area.size)
    expected[start : start + size] = b"w" * size
    for k in kept:
        at = k.start - area.start
        expected[at : at + k.size] = b"k" * k.size
    assert area.map[:] == expected


def test_zeros_are_written_only_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"f" * 2 * PAGE)
    over_file, anonymous = Area(2, path), Area(2)
    anonymous.map[:] = b"a" * anonymous.size
    vmas = sorted([over_file.vma(images.VMA_FILE_PRIVATE), anonymous.vma()], key=lambda v: v.start)
    sink = ProcessSink(os.getpid(), vmas)
    sink.zero(over_file.start, PAGE)
    sink.zero(anonymous.start, PAGE)
    sink.close()
    assert over_file.map[:] == bytes(PAGE) + b"f" * PAGE
    assert anonymous.map[:] == b"a" * anonymous.size, "new anonymous memory is zero already"


def test_pouring_where_nothing_is_mapped() -> None:
    sink = ProcessSink(os.getpid(), [])
    with pytest.raises(PourFailedError, match="no such mapping"):
        sink.write(PAGE, [b"x" * PAGE])
    sink.close()
