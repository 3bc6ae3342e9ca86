"""Which ranges are collapsed, and when a collapse ends."""

from __future__ import annotations

import errno
import os
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot.collapse import LEAST_PAGES, Candidate, collapse, populated_ranges

HUGE = 2 << 20
PAGE = 4096
US = os.getpid()
MINUTE = timedelta(minutes=1)


def test_only_whole_ranges_that_are_mostly_there() -> None:
    full = (8 * HUGE, HUGE)
    assert populated_ranges([full], 0, 100 * HUGE) == [8 * HUGE]
    assert populated_ranges([full], 8 * HUGE, 9 * HUGE) == [8 * HUGE]
    assert populated_ranges([full], 8 * HUGE + PAGE, 9 * HUGE) == []  # not inside its mapping
    assert populated_ranges([full], 8 * HUGE, 9 * HUGE - PAGE) == []
    most, less = LEAST_PAGES * PAGE, (LEAST_PAGES - 1) * PAGE
    assert populated_ranges([(0, most)], 0, HUGE) == [0]
    assert populated_ranges([(0, less)], 0, HUGE) == []
    assert populated_ranges([(0, less - PAGE), (HUGE - 2 * PAGE, 2 * PAGE)], 0, HUGE) == [0]
    assert populated_ranges([(HUGE // 2, 3 * HUGE)], 0, 9 * HUGE) == [HUGE, 2 * HUGE]


@given(st.sets(st.integers(0, 4 * 512 - 1)))
def test_growth_is_bounded(pages: set[int]) -> None:
    runs = [(page * PAGE, PAGE) for page in sorted(pages)]
    chosen = populated_ranges(runs, 0, 4 * HUGE)
    assert chosen == [n * HUGE for n in range(4) if len(pages & set(range(512 * n, 512 * n + 512))) >= 384]
    had = sum(len([p for p in pages if p * PAGE // HUGE * HUGE == base]) for base in chosen)
    assert 512 * len(chosen) - had <= had / 3


CANDIDATES = [Candidate(US, n * HUGE, 412) for n in range(4)]
GROWTH = CANDIDATES[0].growth_bytes


def answers(*errors: int) -> object:
    left = list(errors)
    return lambda pidfd, start: left.pop(0)


def test_what_the_kernel_refuses_is_counted() -> None:
    one = answers(0, errno.EAGAIN, errno.EINVAL, errno.EAGAIN)
    done = collapse(CANDIDATES, headroom=1 << 30, limit=MINUTE, one=one)  # type: ignore[arg-type]
    assert (done.candidates, done.collapsed, done.growth_bytes) == (4, 1, GROWTH)
    assert done.failed == {"EAGAIN": 2, "EINVAL": 1}
    assert not done.stopped


@pytest.mark.parametrize(
    ("headroom", "limit", "error", "collapsed", "why"),
    [
        (2 * GROWTH, MINUTE, 0, 2, "memory"),
        (1 << 30, timedelta(seconds=-1), 0, 0, "time"),
        (1 << 30, MINUTE, errno.EPERM, 0, "CAP_SYS_NICE"),
    ],
)
def test_it_ends_early(headroom: int, limit: timedelta, error: int, collapsed: int, why: str) -> None:
    one = answers(*[error] * 4)
    done = collapse(CANDIDATES, headroom=headroom, limit=limit, one=one)  # type: ignore[arg-type]
    assert done.collapsed == collapsed
    assert why in done.stopped


def test_a_process_that_has_ended() -> None:
    gone = Candidate(1 << 22, 0, 512)  # above pid_max
    asked: list[int] = []

    def one(pidfd: int, start: int) -> int:
        asked.append(start)
        return errno.ESRCH if start == 0 else 0

    done = collapse([gone, *CANDIDATES], headroom=1 << 30, limit=MINUTE, one=one)
    assert asked == [0]  # the rest of that process is left alone
    assert (done.collapsed, done.stopped, dict(done.failed)) == (0, "", {})
