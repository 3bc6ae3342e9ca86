"""Pages, runs of pages, and how a source is sliced into reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.errors import InternalError

PAGE_SIZE = 4096
"""Bytes. The unit of every address, extent and chunk length."""

ADDRESS_LIMIT = 1 << 64
"""Addresses are below this."""

WORDS_PER_PAGE = PAGE_SIZE // 8

Bytes = bytes | bytearray | memoryview

Run = tuple[int, int]
"""(start address, bytes), both multiples of `PAGE_SIZE`."""


def round_up(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages, in bytes."""
    return -(-nbytes // PAGE_SIZE) * PAGE_SIZE


def check_runs(runs: Sequence[Run]) -> None:
    """Raise `InternalError` unless `runs` are page-aligned, ascending and don't overlap."""
    end = 0
    for start, nbytes in runs:
        if start % PAGE_SIZE or nbytes % PAGE_SIZE or nbytes <= 0:
            raise InternalError(what=f"page run ({start:#x}, {nbytes}) is not made of whole pages")
        if start < end or start + nbytes > ADDRESS_LIMIT:
            raise InternalError(what=f"page run ({start:#x}, {nbytes}) overlaps the one before or the end")
        end = start + nbytes


def read_units(runs: Sequence[Run], unit: int) -> Iterator[list[Run]]:
    """Slice `runs` into lists of pieces of `unit` bytes in all (the last one may have fewer)."""
    pieces: list[Run] = []
    room = unit
    for begin, nbytes in runs:
        start, left = begin, nbytes
        while left:
            take = min(left, room)
            pieces.append((start, take))
            start, left, room = start + take, left - take, room - take
            if not room:
                yield pieces
                pieces, room = [], unit
    if pieces:
        yield pieces


def page_addresses(pieces: Sequence[Run]) -> NDArray[np.uint64]:
    """The address of every page of `pieces`, in order."""
    starts = np.array([start for start, _ in pieces], dtype=np.uint64)
    counts = np.array([nbytes // PAGE_SIZE for _, nbytes in pieces], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(firsts, counts)
    return np.repeat(starts, counts) + within.astype(np.uint64) * np.uint64(PAGE_SIZE)
