"""The cuts decide what is found again: they must depend on pages and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import SMALL_CHUNKS, Pieces, PieceSource, random_pages
from storage_strategies import pieces

from cw_snapshot.storage.batches import buffer_size, read_cuts
from cw_snapshot.storage.cuts import MAX_CHUNK_SIZE, ChunkerParams, as_pages, cut
from cw_snapshot.storage.pages import PAGE_SIZE
from cw_snapshot.storage.pipeline import Monitor, Pool

Found = list[tuple[int, bytes | int]]
"""(address, bytes of a chunk, or number of ZERO pages)."""


def cuts_of(stream: Pieces, unit_pages: int, params: ChunkerParams = SMALL_CHUNKS) -> Found:
    """All extents of a stream that is read in units of `unit_pages`; adjacent ZERO runs joined."""
    unit = unit_pages * PAGE_SIZE
    pool = Pool(Monitor(), lambda: np.empty(buffer_size(unit, params), np.uint8), 1)
    found: Found = []
    for part in read_cuts(PieceSource(stream), pool, params, unit):
        chunks = iter(part.chunks())
        for start, count, zero in zip(
            part.cuts.start.tolist(), part.cuts.pages.tolist(), part.cuts.zero.tolist(), strict=True
        ):
            if not zero:
                found.append((start, bytes(next(chunks))))
                continue
            if found and isinstance(found[-1][1], int) and found[-1][0] + found[-1][1] * PAGE_SIZE == start:
                found[-1] = (found[-1][0], found[-1][1] + count)
            else:
                found.append((start, count))
        assert next(chunks, None) is None
        part.buffer[:] = 0xAA  # whatever is needed later must have been copied
        pool.give(part.buffer)
    return found


def cuts_by_hand(stream: Pieces, params: ChunkerParams) -> Found:
    """The rules, page by page, as one would write them without numpy."""

    def ends_chunk(page: bytes) -> bool:
        words = [int.from_bytes(page[8 * i : 8 * i + 8], "little") for i in range(5, 512, 64)]
        mix = params.seed
        for word in words:
            mix = (mix ^ word) * 0x9E3779B97F4A7C15 % (1 << 64)
            mix ^= mix >> 32
        return any(words) and mix % (params.average // PAGE_SIZE) == 0

    found: Found = []
    chunk, chunk_at, previous = b"", 0, None

    def close() -> None:
        nonlocal chunk
        if chunk:
            found.append((chunk_at, chunk))
        chunk = b""

    for start, data in stream:
        for at in range(0, len(data), PAGE_SIZE):
            page, address = data[at : at + PAGE_SIZE], start + at
            if previous is not None and address != previous + PAGE_SIZE:
                close()
            if not any(page):
                close()
                last = found[-1] if found else None
                if last and isinstance(last[1], int) and last[0] + last[1] * PAGE_SIZE == address:
                    found[-1] = (last[0], last[1] + 1)
                else:
                    found.append((address, 1))
            else:
                chunk_at = chunk_at if chunk else address
                chunk += page
                if ends_chunk(page) or len(chunk) == params.maximum:
                    close()
            previous = address
    close()
    return found


@given(pieces(), st.integers(1, 70))
def test_cuts_follow_the_rules_however_the_source_is_sliced(stream: Pieces, unit: int) -> None:
    assert cuts_of(stream, unit) == cuts_by_hand(stream, SMALL_CHUNKS)


@given(pieces(max_pages=20), st.integers(1, 70), st.integers(1, 70), st.integers(1, 1 << 50))
def test_cuts_do_not_depend_on_the_address(stream: Pieces, one: int, other: int, shift: int) -> None:
    base = stream[0][0] if stream else 0
    moved = [(start - base + shift * PAGE_SIZE, data) for start, data in stream]
    back = [(start - shift * PAGE_SIZE + base, data) for start, data in cuts_of(moved, other)]
    assert cuts_of(stream, one) == back


@given(st.integers(0, 40), st.integers(0, 10_000))
def test_cuts_agree_again_after_a_difference(prefix: int, seed: int) -> None:
    """Other pages in front change the first chunks only."""
    common = random_pages(200, seed)
    plain = {data for _, data in cuts_of([(0, common)], 64)}
    prefixed = {data for _, data in cuts_of([(0, random_pages(prefix, seed + 1) + common)], 64)}
    assert sum(map(len, plain & prefixed)) >= 0.75 * len(common)


def test_average_and_maximum() -> None:
    params = ChunkerParams(average=16 * PAGE_SIZE, maximum=64 * PAGE_SIZE, seed=3)
    lengths = [len(data) // PAGE_SIZE for _, data in cuts_of([(0, random_pages(8000, 5))], 512, params)]
    assert max(lengths) == 64
    assert 13 < sum(lengths) / len(lengths) < 19


def test_every_page_a_chunk_when_average_is_a_page() -> None:
    params = ChunkerParams(average=PAGE_SIZE, maximum=PAGE_SIZE)
    assert len(cuts_of([(0, random_pages(50))], 7, params)) == 50


def test_a_page_is_zero_only_if_all_of_it_is() -> None:
    """One bit anywhere, sampled or not, makes it data."""
    for at in [*range(0, PAGE_SIZE, 97), PAGE_SIZE - 1]:
        page = bytearray(PAGE_SIZE)
        page[at] = 0x80
        assert cuts_of([(0, bytes(page))], 4) == [(0, bytes(page))]
    assert cuts_of([(0, bytes(3 * PAGE_SIZE))], 2) == [(0, 3)]


def test_sparse_pages_are_not_shredded() -> None:
    """Pages whose sampled words are all zero do not each end a chunk, whatever the seed."""
    page = bytes(8) + b"\x01" + bytes(PAGE_SIZE - 9)
    for seed in range(64):
        params = ChunkerParams(average=2 * PAGE_SIZE, maximum=16 * PAGE_SIZE, seed=seed)
        assert [len(data) // PAGE_SIZE for _, data in cuts_of([(0, page * 64)], 64, params)] == [16] * 4


def test_other_seeds_cut_elsewhere() -> None:
    data = random_pages(400)
    one = cuts_of([(0, data)], 64, ChunkerParams(4 * PAGE_SIZE, 16 * PAGE_SIZE, seed=1))
    other = cuts_of([(0, data)], 64, ChunkerParams(4 * PAGE_SIZE, 16 * PAGE_SIZE, seed=2))
    assert {start for start, _ in one} != {start for start, _ in other}


def test_the_open_chunk_is_kept_back_unless_nothing_follows() -> None:
    pages = as_pages(np.frombuffer(random_pages(3, seed=11), np.uint8))
    addresses = np.arange(3, dtype=np.uint64) * np.uint64(PAGE_SIZE)
    params = ChunkerParams(average=1 << 20, maximum=1 << 20)  # nothing of this ends by content
    kept = cut(pages, addresses, params, last=False)
    assert (len(kept.first), kept.open_from) == (0, 0)
    closed = cut(pages, addresses, params, last=True)
    assert (closed.pages.tolist(), closed.open_from) == ([3], 3)


@pytest.mark.parametrize(
    ("average", "maximum", "seed"),
    [
        (0, 1 << 20, 0),
        (2048, 1 << 20, 0),
        (3 * PAGE_SIZE, 1 << 20, 0),
        (1 << 20, 1 << 19, 0),
        (1 << 17, (1 << 20) + 1, 0),
        (1 << 17, MAX_CHUNK_SIZE + PAGE_SIZE, 0),
        (1 << 17, 1 << 20, -1),
        (1 << 17, 1 << 20, 1 << 64),
    ],
)
def test_parameters_that_make_no_sense(average: int, maximum: int, seed: int) -> None:
    with pytest.raises(ValueError, match=r"chunk size|seed"):
        ChunkerParams(average, maximum, seed)
