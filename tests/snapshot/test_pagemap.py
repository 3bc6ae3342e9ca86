"""Which pages have content: PAGEMAP_SCAN and the pagemap file must agree."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cw_snapshot.snapshot import pagemap as pagemaps
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.pagemap import (
    Pagemap,
    addresses_of,
    join,
    scan_finds_guards,
    supported_categories,
)

PAGE = mmap.PAGESIZE
PAGES = 48
HUGE = 2 << 20
MADV_PAGEOUT = 21
MADV_GUARD_INSTALL = 102


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.fixture(autouse=True)
def as_the_kernel_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways are tested here, whatever `--criu-variant` has chosen."""
    monkeypatch.delenv("CW_SNAPSHOT_TEST_NO_PAGEMAP_SCAN", raising=False)
    supported_categories.cache_clear()
    yield
    supported_categories.cache_clear()


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


def madvise(start: int, size: int, advice: int) -> bool:
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice) == 0


def assert_both_ways_agree(pid: int, start: int, end: int) -> tuple[pagemaps.Runs, pagemaps.Runs]:
    with Pagemap(pid) as scan, Pagemap(pid, use_scan=False) as file:
        private, guards = scan.private_pages(start, end), scan.guards(start, end)
        assert file.private_pages(start, end) == private
        assert file.guards(start, end) == guards
    return private, guards


WHAT = ("read", "write", "write zeros", "drop", "page out", "guard")
STEPS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, PAGES - 1), st.integers(1, PAGES // 2)), max_size=12
)


@pytest.mark.root  # frames of pages
@pytest.mark.parametrize("kind", ["anonymous", "file", "memfd", "shared"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_both_ways_agree_whatever_was_done_to_the_pages(
    tmp_path: Path, kind: str, steps: list[tuple[str, int, int]]
) -> None:
    assert supported_categories(), "this kernel has no PAGEMAP_SCAN"
    fd = -1
    if kind == "file":
        (tmp_path / "file").write_bytes(b"x" * PAGES * PAGE)
        fd = os.open(tmp_path / "file", os.O_RDWR)
    elif kind == "memfd":
        fd = os.memfd_create("test")
        os.pwrite(fd, b"x" * 16 * PAGE, 0)
        os.ftruncate(fd, PAGES * PAGE)
    flags = mmap.MAP_SHARED if kind == "shared" else mmap.MAP_PRIVATE
    memory = mmap.mmap(fd, PAGES * PAGE, flags | (mmap.MAP_ANONYMOUS if fd < 0 else 0))
    if fd >= 0:
        os.close(fd)
    start, end = address_of(memory), address_of(memory) + PAGES * PAGE
    guarded: set[int] = set()
    for what, first, count in steps:
        for page in range(first, min(first + count, PAGES)):
            at = start + page * PAGE
            if what in ("read", "write", "write zeros") and page not in guarded:
                ctypes.c_char.from_address(at).value  # noqa: B018
                if what != "read":
                    ctypes.memset(at, what == "write", PAGE)
            elif what == "drop":
                madvise(at, PAGE, mmap.MADV_DONTNEED)
            elif what == "page out":
                madvise(at, PAGE, MADV_PAGEOUT)
            elif what == "guard" and scan_finds_guards() and madvise(at, PAGE, MADV_GUARD_INSTALL):
                guarded.add(page)
    _, guards = assert_both_ways_agree(os.getpid(), start, end)
    assert guards == join((start + page * PAGE, PAGE) for page in sorted(guarded))


@pytest.mark.root
def test_both_ways_agree_about_huge_pages() -> None:
    memory = mmap.mmap(-1, 4 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -(-address_of(memory) // HUGE) * HUGE
    assert madvise(start, 3 * HUGE, mmap.MADV_HUGEPAGE)
    ctypes.c_char.from_address(start).value  # noqa: B018  # the huge zero page
    ctypes.memset(start + HUGE, 1, 1)
    ctypes.memset(start + 2 * HUGE, 1, HUGE)
    madvise(start + 2 * HUGE + 7 * PAGE, 9 * PAGE, mmap.MADV_DONTNEED)
    private, _ = assert_both_ways_agree(os.getpid(), start, start + 3 * HUGE)
    assert sum(size for _, size in private) >= HUGE - 9 * PAGE + PAGE


@pytest.mark.root
def test_both_ways_agree_about_a_whole_process(built: dict[str, Path], tmp_path: Path) -> None:
    """Every kind of mapping: shared, private, hidden, locked, advised."""
    command = [built["regions"], tmp_path / "mapped.bin", *(["guards"] if scan_finds_guards() else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        found = [
            assert_both_ways_agree(process.pid, m.start, m.end)
            for m in procfs.mappings(process.pid)
            if m.name != "[vsyscall]"
        ]
        assert sum(bool(private) for private, _ in found) > 10
    finally:
        process.kill()
        process.wait()


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CW_SNAPSHOT_TEST_NO_PAGEMAP_SCAN", "1")
    supported_categories.cache_clear()
    assert not supported_categories()
    assert not scan_finds_guards()
