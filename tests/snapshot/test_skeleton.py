"""Choosing pids that no restored task needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot.skeleton import _PID_ROOM, pid_floor


def test_above_the_highest() -> None:
    assert pid_floor({2, 7, 30}, 32768) == 30


def test_in_the_widest_gap_near_the_limit() -> None:
    assert pid_floor({2, 100, 32700}, 32768) == 100


@given(st.sets(st.integers(2, 4194303), min_size=1, max_size=200))
def test_what_follows_is_free(used: set[int]) -> None:
    limit = 4194304
    floor = pid_floor(used, limit)
    room = range(floor + 1, min(floor + 1 + _PID_ROOM, limit))
    widest = max(b - a for a, b in zip([1, *sorted(used)], [*sorted(used), limit], strict=True))
    if widest > _PID_ROOM:
        assert not used & set(room)
