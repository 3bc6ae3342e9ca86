"""What a prediction sees of real processes."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from cw_snapshot.snapshot import job_facts, procfs, tree
from cw_snapshot.snapshot.pagemap import Pagemap, supported_categories
from cw_snapshot.snapshot.predict import JobFacts, Pace, Rates, predict
from tests.build import compile_c

pytestmark = pytest.mark.root

MIB = 1 << 20
RESERVED = 64 << 30
MAP_NORESERVE = 0x4000
NEAR = 3 * MIB
"""A C program's own memory, and what sampling may be off by."""


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).parents[2] / "benchmarks" / "jobs" / "shape.c"
    return compile_c([source], tmp_path_factory.mktemp("shape") / "shape", "-lpthread")


Facts = Callable[..., JobFacts]


@pytest.fixture
def facts() -> Iterator[Facts]:
    """Start a program, wait until it is ready, and look at it."""
    running = []

    def look(*command: object) -> JobFacts:
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        return job_facts.read(tree.find(process.pid))

    try:
        yield look
    finally:
        for process in running:
            # Children of a killed one end by themselves (PR_SET_PDEATHSIG).
            process.kill()
            process.communicate()


def test_small_and_huge_pages(shape: Path, facts: Facts) -> None:
    """Page tables are there for both; only small pages cost a fork."""
    small = facts(shape, 64, "small", 1, 0, 0, 0, 1, "own")
    huge = facts(shape, 64, "huge", 1, 0, 0, 0, 1, "own")
    mixed = facts(shape, 64, "mixed", 1, 0, 0, 0, 1, "own")
    assert abs(small.small_pages * 4096 - 64 * MIB) < NEAR
    assert small.huge_pages == 0
    assert 30 <= huge.huge_pages <= 32
    assert huge.small_pages * 4096 < 2 * NEAR
    assert 14 <= mixed.huge_pages <= 16
    for found in (small, huge, mixed):
        assert abs(found.private_bytes - 64 * MIB) < NEAR
    assert abs(small.page_table_bytes - huge.page_table_bytes) < 64 << 10  # VmPTE tells nothing
    rates = Rates(1e8, "test")
    pauses = [predict(found, Pace(), rates).pause_seconds for found in (huge, mixed, small)]
    assert pauses == sorted(pauses)


def test_without_pagemap_scan(shape: Path, facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on kernels before 6.7."""
    monkeypatch.setattr(Pagemap, "huge_pages", lambda *_: None)
    assert 14 <= facts(shape, 64, "mixed", 1, 0, 0, 0, 1, "own").huge_pages <= 16


def test_ranks_that_map_the_same_memory(shape: Path, facts: Facts) -> None:
    """criu dumps each shared object once, whoever maps it."""
    one = facts(shape, 1, "small", 1, 0, 64, 0, 1, "own")
    eight = facts(shape, 1, "small", 1, 0, 64, 0, 8, "own")
    assert one.shared_bytes == eight.shared_bytes == 64 * MIB
    assert eight.processes == len(eight.forks) == 8
    # A fork does not copy the page tables of shared memory.
    assert eight.small_pages * 4096 < 8 * NEAR


def test_pages_that_forked_processes_share(shape: Path, facts: Facts) -> None:
    """They are read once, and once is what they can cost; every fork copies their tables."""
    forked = facts(shape, 64, "small", 1, 0, 0, 0, 4, "forked")
    own = facts(shape, 64, "small", 1, 0, 0, 0, 4, "own")
    assert abs(forked.private_bytes - 64 * MIB) < 2 * NEAR
    assert abs(own.private_bytes - 4 * 64 * MIB) < 4 * NEAR
    assert abs(forked.small_pages - own.small_pages) * 4096 < 4 * NEAR


def test_counts(shape: Path, facts: Facts) -> None:
    few = facts(shape, 1, "small", 1, 0, 0, 0, 2, "own")
    many = facts(shape, 1, "small", 10, 100, 0, 300, 2, "own")
    assert (few.threads, many.threads) == (2, 20)
    assert many.descriptors - few.descriptors == 2 * 100
    # Each mapping of one page lies beside another; threads have stacks with guards.
    assert 2 * 300 <= many.mappings - few.mappings <= 2 * (300 + 4 * 10)


def test_pinned_memory(built: dict[str, Path], facts: Facts) -> None:
    """A buffer registered with io_uring: the kernel copies it in every fork."""
    found = facts(built["pinned"], 64)
    assert abs(found.pinned_bytes - 64 * MIB) < NEAR
    prediction = predict(found, Pace(), Rates(1e8, "test"))
    assert prediction.parts.pinned > 0.01
    assert prediction.extra_memory_bytes >= 64 * MIB
    assert prediction.to_json()["pinned_bytes"] == found.pinned_bytes


def test_a_process_that_ends_meanwhile(shape: Path, facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = procfs.descriptors
    asked: list[int] = []

    def vanishing(pid: int) -> list[procfs.Descriptor]:
        asked.append(pid)
        if len(asked) == 2:
            raise procfs.ProcessGoneError(pid=pid)
        return descriptors(pid)

    monkeypatch.setattr(procfs, "descriptors", vanishing)
    found = facts(shape, 1, "small", 1, 0, 0, 0, 3, "own")
    assert found.processes == len(found.forks) == 2


def test_reserved_memory_counts_where_there_are_no_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """criu looks at each page that might be there (criu/pagemap-cache.c)."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, RESERVED, flags, 0)
    try:
        me = tree.find(os.getpid())
        assert job_facts.read(me).reserved_bytes == (0 if supported_categories() else ANY)
        monkeypatch.setattr(job_facts, "supported_categories", lambda: 0)
        found = job_facts.read(me)
        assert found.reserved_bytes >= RESERVED
        assert predict(found, Pace(), Rates(1e8, "test")).parts.reserved > 0.1
    finally:
        memory.close()


def test_how_busy_it_is(facts: Facts) -> None:
    """Of all processors, as the kernel counts it in ticks."""
    cores = len(os.sched_getaffinity(0))
    assert facts("sh", "-c", "echo ready; exec sleep 60").busy < 0.2
    assert facts("sh", "-c", "echo ready; while :; do :; done").busy > 0.3 / cores
