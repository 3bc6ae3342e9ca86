"""Which pages are a family's: pure decisions on page frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot.families import LEAST_PAGES, Family, TaskPages, agreed, families
from cw_snapshot.snapshot.pagemap import addresses_of, runs_of

PAGE = 4096
N = LEAST_PAGES


def task(frames: dict[int, int]) -> TaskPages:
    """Frames by page number."""
    pages = sorted(frames)
    return TaskPages(np.array(pages, np.uint64) * PAGE, np.array([frames[p] for p in pages], np.uint64))


def numbers(family: Family, member: int) -> set[int]:
    return {int(a) // PAGE for a in family.members[member]}


def alike(count: int, first_frame: int = 1000) -> dict[int, int]:
    return {page: first_frame + page for page in range(1, count + 1)}


def test_parent_and_child() -> None:
    parent = alike(N + 10)
    child = {**parent, 3: 7, 5000: 8}
    del child[4]
    (family,) = families({1: task(parent), 2: task(child)}, {2: 1})
    assert family.root == 1
    both = set(parent) - {3, 4}
    assert numbers(family, 1) == numbers(family, 2) == both
    assert set(family.origins.tolist()) == {1}


def test_few_pages_make_no_family() -> None:
    parent = alike(N - 1)
    assert families({1: task(parent), 2: task(parent)}, {2: 1}) == []


def test_same_frames_elsewhere_are_no_family() -> None:
    parent = alike(N)
    moved = {page + 1: frame for page, frame in parent.items()}
    assert families({1: task(parent), 2: task(moved)}, {2: 1}) == []


def test_strangers_and_siblings_are_no_family() -> None:
    """criu can only share along the tree."""
    same = alike(N)
    assert families({1: task({}), 2: task(same), 3: task(same)}, {2: 1, 3: 1}) == []
    assert families({2: task(same), 3: task(same)}, {2: 1, 3: 1}) == []


def test_unknown_frames_are_never_shared() -> None:
    swapped = dict.fromkeys(range(2 * N), 0)
    assert families({1: task(swapped), 2: task(swapped)}, {2: 1}) == []


def test_what_the_grandchild_has_from_its_parent() -> None:
    """The child's own pages that the grandchild shares belong to the family too."""
    parent = alike(N)
    child = {**parent, **alike(2 * N, 9000)}
    child = {**child, **parent, N + 5: 77}
    (family,) = families({1: task(parent), 2: task(child), 3: task(child)}, {2: 1, 3: 2})
    assert numbers(family, 1) == set(parent)
    assert numbers(family, 2) == numbers(family, 3) == set(child)
    origin = dict(zip((family.addresses // PAGE).tolist(), family.origins.tolist(), strict=True))
    assert origin[1] == 1
    assert origin[N + 5] == 2


def test_branches_that_differ() -> None:
    """One content for an address: that of the most members; the others keep theirs."""
    root = alike(N)
    left = {**root, **{1000 + p: 1 + p for p in range(N)}}
    right = {**root, **{1000 + p: 5000 + p for p in range(N)}}
    found = families(
        {1: task(root), 2: task(left), 3: task(right), 4: task(right), 5: task(right), 6: task(left)},
        {2: 1, 3: 1, 4: 3, 5: 3, 6: 2},
    )
    (family,) = found
    assert numbers(family, 3) == numbers(family, 4) == numbers(family, 5) == set(right)
    assert numbers(family, 2) == numbers(family, 6) == set(root)


def test_two_families() -> None:
    a, b = alike(N), alike(N, 70000)
    found = families({1: task({}), 2: task(a), 3: task(b), 4: task(a), 5: task(b)}, {2: 1, 3: 1, 4: 2, 5: 3})
    assert [(f.root, sorted(f.members)) for f in found] == [(2, [2, 4]), (3, [3, 5])]


def test_looks_that_disagree() -> None:
    """A frame seen at two moments in two places: a page moved away, another moved there."""
    first, second = np.array([1, 2, 0], np.uint64), np.array([1, 3, 0], np.uint64)
    assert agreed(first, second).tolist() == [1, 0, 0]


@st.composite
def forests(draw: st.DrawFn) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """Processes that forked, wrote, mapped and unmapped."""
    frames: dict[int, dict[int, int]] = {1: alike(N + 40)}
    parents: dict[int, int] = {}
    fresh = 100_000
    for pid in range(2, draw(st.integers(2, 6)) + 1):
        parent = draw(st.integers(1, pid - 1))
        parents[pid] = parent
        frames[pid] = dict(frames[parent])
        for someone in (pid, parent):
            for page in draw(st.lists(st.integers(1, N + 60), max_size=12)):
                fresh += 1
                if draw(st.booleans()):
                    frames[someone][page] = fresh
                else:
                    frames[someone].pop(page, None)
    return frames, parents


@given(forests())
def test_the_family_s_page_is_the_member_s_page(
    forest: tuple[dict[int, dict[int, int]], dict[int, int]],
) -> None:
    frames, parents = forest
    for family in families({pid: task(f) for pid, f in frames.items()}, parents):
        pages = (family.addresses // PAGE).tolist()
        assert pages == sorted(set(pages))
        content = {p: frames[o][p] for p, o in zip(pages, family.origins.tolist(), strict=True)}
        listed: list[int] = []
        for member in family.members:
            for page in numbers(family, member):
                assert frames[member][page] == content[page]
                listed.append(page)
        assert all(listed.count(page) >= 2 for page in content), "each is shared by somebody"
        rebuilt = [
            (origin, start + at) for origin, start, size in family.pieces() for at in range(0, size, PAGE)
        ]
        assert rebuilt == list(zip(family.origins.tolist(), family.addresses.tolist(), strict=True))


@pytest.mark.parametrize("runs", [[], [(4096, 4096)], [(4096, 8192), (40960, 4096), (81920, 12288)]])
def test_runs_and_addresses(runs: list[tuple[int, int]]) -> None:
    addresses = addresses_of(runs)
    assert len(addresses) == sum(size for _, size in runs) // PAGE
    assert runs_of(addresses) == runs
