"""A job in a control group with a memory limit: a take costs the snapshot at worst, never the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.take import SnapshotLostError, TakeReport, TakeRequest, take
from cw_snapshot.snapshot.memory_watch import MemoryWatch
from cw_snapshot.snapshot.shadow_pages import Stream
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import WriteStats
from tests.engine import Engine, alive, eventually, shadows_of
from tests.groups import control_group, inside, limit_memory, memory_used, oom_kills

pytestmark = pytest.mark.root

MIB = 1 << 20

# Rewrites 160 MiB over and over, at most 1 MiB each millisecond; a line for each round.
WRITER = """
import itertools, mmap, time
area = mmap.mmap(-1, 160 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
for n in itertools.count():
    for block in range(0, len(area), 1 << 20):
        for at in range(block, block + (1 << 20), 4096): area[at:at + 8] = n.to_bytes(8, 'little')
        time.sleep(0.001)
    print(n, flush=True)
"""

# One page in each 2 MiB: page tables as large as the memory. 0x4000 is MAP_NORESERVE.
SPREAD = """
import itertools, mmap, time
area = mmap.mmap(-1, 8 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
area.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(area), 2 << 20): area[at:at + 8] = at.to_bytes(8, 'little')
for n in itertools.count():
    at = (n << 21) % len(area)
    assert area[at:at + 8] == at.to_bytes(8, 'little')
    print(n, flush=True); time.sleep(0.02)
"""


class Quiet:
    def phase(self, name: str) -> None: ...
    def pages(self, stats: WriteStats, total: int) -> None: ...


@pytest.fixture
def group() -> Iterator[Path]:
    with control_group("memory") as made:
        yield made


def writer_at_its_limit(engine: Engine, group: Path) -> None:
    """Start a job that uses 80 % of what it may."""
    engine.job("writer", inside(group, [sys.executable, "-u", "-c", WRITER]))
    engine.wait_lines("writer", 2)
    limit_memory(group, memory_used(group) * 5 // 4)


def take_it(engine: Engine) -> TakeReport:
    record = engine.store.running("writer")
    settings = Settings(
        state_dir=engine.state, repository=str(engine.repository), max_pause=timedelta(seconds=30)
    )
    request = TakeRequest("writer", record.root_pid, record)
    return take(request, engine.store, Repository.open(engine.repository), settings, Quiet())


def read_when_the_shadows_are_gone(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    original = NodeTake.streams

    def streams(node: NodeTake) -> list[Stream]:
        found = original(node)
        eventually("the shadow is gone", lambda: not shadows_of(engine, "writer"), 30)
        return found

    monkeypatch.setattr(NodeTake, "streams", streams)


def goes_on(engine: Engine) -> None:
    lines = engine.wait_lines("writer", 3)
    assert lines == [str(n) for n in range(len(lines))]
    assert engine.ok("list", "--json").json["snapshots"] == []
    engine.assert_clean()


def test_shadows_are_dropped_before_memory_runs_out(
    engine: Engine, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer_at_its_limit(engine, group)
    read_when_the_shadows_are_gone(monkeypatch, engine)
    (finding,) = engine.plan("writer")["findings"]
    assert (finding["code"], finding["severity"]) == ("memory-headroom", "warning")
    assert str(group) in finding["evidence"]
    with pytest.raises(SnapshotLostError, match="ran short") as caught:
        take_it(engine)
    assert caught.value.exit_code == 5
    assert caught.value.evidence[0].startswith(f"{group}: limit ")
    assert "--stop" in caught.value.fix
    assert oom_kills(group) == 0, "nobody had to be killed"
    goes_on(engine)


def test_the_kernel_kills_the_shadow_and_not_the_job(
    engine: Engine, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody watches: the shadow is first in line."""
    writer_at_its_limit(engine, group)
    read_when_the_shadows_are_gone(monkeypatch, engine)
    monkeypatch.setattr(MemoryWatch, "start", lambda *_: None)
    root = engine.root("writer")
    with pytest.raises(SnapshotLostError, match="the kernel killed a shadow") as caught:
        take_it(engine)
    assert oom_kills(group) == 1
    assert any(f"{group}: " in line and "1 killed" in line for line in caught.value.evidence)
    assert alive(root)
    goes_on(engine)


def test_a_clone_that_does_not_fit_is_not_tried(engine: Engine, group: Path) -> None:
    """Page tables are charged to the job; there is no shadow yet that could be killed for them."""
    engine.job("spread", inside(group, [sys.executable, "-u", "-c", SPREAD]))
    engine.wait_lines("spread", 3)
    limit_memory(group, memory_used(group) + 10 * MIB)
    assert "clone-headroom" in [f["code"] for f in engine.plan("spread")["findings"]]
    report = engine.take("spread")
    assert len(report["without_shadow"]) == 1
    assert "Cannot allocate memory" in report["without_shadow"][0]
    assert oom_kills(group) == 0
    engine.wait_lines("spread", 3)
    os.kill(engine.root("spread"), 9)
    engine.restore("latest:spread")
    engine.wait_lines("spread", 10)
    engine.assert_clean()
