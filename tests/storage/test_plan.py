from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import extents

from cw_snapshot.storage.manifest import ZERO
from cw_snapshot.storage.plan import (
    ChunkTable,
    ReadLimits,
    ZeroRun,
    find_wrong_length,
    plan_deliveries,
    plan_reads,
    select_rows,
    wanted_chunks,
    zero_runs,
)

P = 4096


def table(rows: list[tuple[int, int, int]]) -> ChunkTable:
    """Rows of (pack, offset, stored); chunk numbers count down."""
    pack, offset, stored = (np.array([row[i] for row in rows], dtype=np.uint32) for i in range(3))
    return ChunkTable(
        ids=np.zeros((len(rows), 4), np.uint64),
        pack=pack,
        offset=offset,
        stored=stored,
        raw=np.full(len(rows), P, np.uint32),
        codec=np.zeros(len(rows), np.uint8),
        number=np.arange(len(rows))[::-1].copy(),
    )


def test_neighbours_are_read_together() -> None:
    reads = plan_reads(
        table([(0, 16, 10), (0, 26, 10), (0, 40, 5), (1, 0, 5)]), ReadLimits(longest=100, gap=4)
    )
    assert [(read.pack, read.offset, read.length, read.first, read.last) for read in reads] == [
        (0, 16, 29, 0, 3),
        (1, 0, 5, 3, 4),
    ]


def test_gaps_and_limits_part_reads() -> None:
    rows = table([(0, 0, 10), (0, 15, 10), (0, 25, 10), (0, 35, 200), (0, 235, 10)])
    reads = plan_reads(rows, ReadLimits(longest=20, gap=4))
    assert [(read.offset, read.length) for read in reads] == [(0, 10), (15, 20), (35, 200), (235, 10)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 60)), max_size=30),
    st.integers(1, 200),
    st.integers(0, 50),
)
def test_reads_give_every_row_once(shape: list[tuple[int, int, int]], longest: int, gap: int) -> None:
    rows, ends = [], {}
    for pack, space, stored in sorted(shape):
        offset = ends.get(pack, 0) + space
        rows.append((pack, offset, stored))
        ends[pack] = offset + stored
    reads = plan_reads(table(rows), ReadLimits(longest, gap))
    assert [row for read in reads for row in range(read.first, read.last)] == list(range(len(rows)))
    for read in reads:
        assert read.length <= longest or read.last - read.first == 1
        for pack, offset, stored in rows[read.first : read.last]:
            assert pack == read.pack
            assert read.offset <= offset
            assert offset + stored <= read.offset + read.length


def test_deliveries_to_every_extent_that_wants_a_chunk() -> None:
    one = extents((0, 1, 2), (P, 1, ZERO), (2 * P, 1, 0))
    two = extents((7 * P, 1, 0), (9 * P, 1, 0))
    rows = select_rows(table([(0, 0, 1), (0, 1, 1), (0, 2, 1)]), np.array([0, 2]))  # chunks 2 and 0
    assert wanted_chunks([one, two]).tolist() == [0, 2]
    found = plan_deliveries([one, two], rows, 3)
    assert found.bounds.tolist() == [0, 1, 4]
    assert list(zip(found.sink.tolist(), found.start.tolist(), strict=True)) == [
        (0, 0),
        (0, 2 * P),
        (1, 7 * P),
        (1, 9 * P),
    ]
    assert zero_runs([one, two]) == [ZeroRun(0, P, P)]


def test_nothing_wanted() -> None:
    empty = table([])
    assert plan_reads(empty, ReadLimits()) == []
    assert plan_deliveries([], empty, 0).bounds.tolist() == [0]
    assert plan_deliveries([extents((0, 1, ZERO))], empty, 0).bounds.tolist() == [0]
    assert wanted_chunks([]).tolist() == []


def test_lengths_are_compared_with_the_packs() -> None:
    raw = np.array([P, 2 * P, 0], np.uint32)
    known = np.array([0, 1])
    fits = extents((0, 1, 0), (P, 2, 1), (9 * P, 5, 2), (20 * P, 9, ZERO))
    assert find_wrong_length([fits], known, raw) is None
    assert find_wrong_length([fits, extents((0, 1, 1))], known, raw) == 1
