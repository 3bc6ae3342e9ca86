"""Which pages have content: PAGEMAP_SCAN and the pagemap file must agree."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from cw_snapshot.snapshot.pagemap import Pagemap, addresses_of, join, supported_categories

PAGE = mmap.PAGESIZE


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.fixture(params=[True, False], ids=["scan", "file"])
def pagemap(request: pytest.FixtureRequest) -> Pagemap:
    if request.param:
        assert supported_categories(), "this kernel has no PAGEMAP_SCAN"
    return Pagemap(os.getpid(), use_scan=request.param)


def test_written_pages_of_anonymous_memory(pagemap: Pagemap) -> None:
    memory = mmap.mmap(-1, 64 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    start = address_of(memory)
    for page in (0, 1, 2, 10, 63):
        memory[page * PAGE] = 1
    found = pagemap.private_pages(start, start + 64 * PAGE)
    assert found == [(start, 3 * PAGE), (start + 10 * PAGE, PAGE), (start + 63 * PAGE, PAGE)]


def test_many_runs_in_one_mapping(pagemap: Pagemap) -> None:
    """The kernel's scan works in rounds of 512 regions; no page may be told twice."""
    pages = 2 * 2048 + 4096
    memory = mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    start = address_of(memory)
    wanted = [*range(0, 4096, 2), *range(4096, 6000), *range(6001, pages)]
    for page in wanted:
        memory[page * PAGE] = 1
    found = pagemap.private_pages(start, start + pages * PAGE)
    assert addresses_of(found).tolist() == [start + page * PAGE for page in wanted]


def test_zero_pages_that_were_written_count(pagemap: Pagemap) -> None:
    memory = mmap.mmap(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[PAGE] = 0
    start = address_of(memory)
    assert (start + PAGE, PAGE) in pagemap.private_pages(start, start + 4 * PAGE)


def test_only_changed_pages_of_a_private_file_mapping(pagemap: Pagemap, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8 * PAGE)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 8 * PAGE, mmap.MAP_PRIVATE)
    start = address_of(memory)
    assert memory[0] == memory[4 * PAGE] == ord("x")
    memory[5 * PAGE] = 0
    assert pagemap.private_pages(start, start + 8 * PAGE) == [(start + 5 * PAGE, PAGE)]


def test_join() -> None:
    assert join([(0, 4), (4, 4), (16, 4)]) == [(0, 8), (16, 4)]
    assert join([]) == []
