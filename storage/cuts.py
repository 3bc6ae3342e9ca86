"""Where chunks begin and end. Pure: pages in, cuts out.

A chunk is a row of consecutive data pages. It ends

- after a page whose mix has log2(average / 4096) zero bits,
- at a gap between addresses,
- before a ZERO page,
- at the maximum size.

The mix is made of a few sampled words of the page, so it depends on the page's content and on
nothing else: the same pages give the same chunks in another process, at other addresses. After
a difference, or after a cut at the maximum, the chunks agree again at the next cut by content.
The last chunk of a call stays *open* when nothing has ended it: its pages come first in the
next call, so the cuts don't depend on how the source was sliced into calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.storage.pages import PAGE_SIZE, WORDS_PER_PAGE

MAX_CHUNK_SIZE = 16 << 20
"""Bytes. No repository may be configured to make larger chunks, no reader accepts them."""

# One word out of each 512 bytes, off the word where headers and length fields like to sit.
_SAMPLE_OFFSET = 5
_SAMPLE_STRIDE = 64
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
# Suspects of being zero are read in full, this many pages at a time (256 KiB stay in the cache).
_ZERO_BLOCK = 64


@dataclass(frozen=True)
class ChunkerParams:
    """How a repository cuts. Two repositories cut alike only with the same parameters."""

    average: int = 128 << 10
    """Bytes, a power of two, at least one page."""
    maximum: int = 1 << 20
    """Bytes, whole pages, from `average` to `MAX_CHUNK_SIZE`."""
    seed: int = 0
    """64 bits that enter every mix, so that chunk lengths tell nothing without the config."""

    def __post_init__(self) -> None:
        if self.average < PAGE_SIZE or self.average & (self.average - 1):
            raise ValueError(f"average chunk size {self.average} is not a power of two of at least a page")
        if self.maximum % PAGE_SIZE or not self.average <= self.maximum <= MAX_CHUNK_SIZE:
            raise ValueError(f"maximum chunk size {self.maximum} is not allowed")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError("the chunker's seed does not fit 64 bits")


@dataclass(frozen=True)
class Cuts:
    """Extents of one call of `cut`, in address order; arrays of equal length."""

    first: NDArray[np.int64]
    """Index of the extent's first page in the pages given."""
    pages: NDArray[np.int64]
    start: NDArray[np.uint64]
    """Address of the first page."""
    zero: NDArray[np.bool_]
    """True for a run of ZERO pages, False for a chunk."""
    open_from: int
    """Index of the first page that belongs to no extent yet; the number of pages if all do."""


def cut(
    pages: NDArray[np.uint64], addresses: NDArray[np.uint64], params: ChunkerParams, *, last: bool
) -> Cuts:
    """Cut `pages`, shape (n, 512), at `addresses`, shape (n,), ascending; n is at least 1.

    Pages left open by the call before come first. `last` says that nothing follows: no chunk
    stays open.
    """
    count = len(pages)
    natural, zero = _classify(pages, params)
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = natural[:-1] | (zero[1:] != zero[:-1]) | (np.diff(addresses) != PAGE_SIZE)
    first = np.flatnonzero(begins)
    length = np.diff(first, append=count)
    first, length = _split_long(first, length, zero[first], params.maximum // PAGE_SIZE)

    open_from = count
    ended = last or natural[-1] or zero[-1] or length[-1] * PAGE_SIZE == params.maximum
    if not ended:
        open_from = int(first[-1])
        first, length = first[:-1], length[:-1]
    return Cuts(first=first, pages=length, start=addresses[first], zero=zero[first], open_from=open_from)


def _classify(
    pages: NDArray[np.uint64], params: ChunkerParams
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For every page: does a chunk end after it, and is it all zero?"""
    samples = np.ascontiguousarray(pages[:, _SAMPLE_OFFSET::_SAMPLE_STRIDE].T)
    mix = np.full(len(pages), params.seed, dtype=np.uint64)
    for column in samples:
        mix ^= column
        mix *= _MULTIPLIER
        mix ^= mix >> _SHIFT
    # Pages whose samples are all zero have equal mixes: a cut after each would shred sparse memory.
    sparse = np.bitwise_or.reduce(samples, axis=0) == 0
    natural = (mix & np.uint64(params.average // PAGE_SIZE - 1)) == 0
    natural &= ~sparse
    zero = np.zeros(len(pages), dtype=np.bool_)
    suspects = np.flatnonzero(sparse)
    for begin in range(0, len(suspects), _ZERO_BLOCK):
        block = suspects[begin : begin + _ZERO_BLOCK]
        zero[block] = np.bitwise_or.reduce(pages[block], axis=1) == 0
    return natural, zero


def _split_long(
    first: NDArray[np.int64], length: NDArray[np.int64], zero: NDArray[np.bool_], maximum: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split data segments of more than `maximum` pages, counted from the segment's beginning."""
    pieces = np.where(zero, 1, -(-length // maximum))
    if not (pieces > 1).any():
        return first, length
    ends = np.repeat(first + length, pieces)
    order = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = np.repeat(first, pieces) + order * maximum
    limit = np.repeat(np.where(zero, length, maximum), pieces)
    return begins, np.minimum(limit, ends - begins)


def as_pages(buffer: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """View whole pages of bytes as the words that `cut` reads, shape (n, 512), without a copy."""
    return buffer.view(np.dtype("<u8")).reshape(-1, WORDS_PER_PAGE)
