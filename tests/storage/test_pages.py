from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.errors import InternalError
from cw_snapshot.storage.pages import (
    PAGE_SIZE,
    check_runs,
    page_addresses,
    read_units,
    round_up,
)


def test_round_up() -> None:
    assert [round_up(n) for n in (0, 1, 4095, 4096, 4097)] == [0, 4096, 4096, 4096, 8192]


@pytest.mark.parametrize(
    "runs",
    [
        [(1, PAGE_SIZE)],
        [(0, 100)],
        [(0, 0)],
        [(0, -PAGE_SIZE)],
        [(-PAGE_SIZE, PAGE_SIZE)],
        [(0, 2 * PAGE_SIZE), (PAGE_SIZE, PAGE_SIZE)],
        [(PAGE_SIZE, PAGE_SIZE), (0, PAGE_SIZE)],
        [((1 << 64) - PAGE_SIZE, 2 * PAGE_SIZE)],
    ],
)
def test_bad_runs_are_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(InternalError):
        check_runs(runs)


def test_good_runs() -> None:
    check_runs([])
    check_runs([(0, PAGE_SIZE), (PAGE_SIZE, PAGE_SIZE), ((1 << 64) - PAGE_SIZE, PAGE_SIZE)])


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3)), max_size=10), st.integers(1, 20))
def test_units_cover_the_runs_in_order(shape: list[tuple[int, int]], unit: int) -> None:
    runs, at = [], 0
    for length, gap in shape:
        runs.append((at * PAGE_SIZE, length * PAGE_SIZE))
        at += length + gap
    units = list(read_units(runs, unit * PAGE_SIZE))
    assert all(sum(n for _, n in pieces) == unit * PAGE_SIZE for pieces in units[:-1])
    assert all(sum(n for _, n in pieces) <= unit * PAGE_SIZE for pieces in units)
    expected = [start + at for start, n in runs for at in range(0, n, PAGE_SIZE)]
    assert [address for pieces in units for address in page_addresses(pieces).tolist()] == expected


def test_addresses_at_the_end_of_the_space() -> None:
    last = (1 << 64) - PAGE_SIZE
    assert page_addresses([(last, PAGE_SIZE)]).tolist() == [last]
