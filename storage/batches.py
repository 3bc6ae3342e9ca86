"""From a source to batches of whole chunks, and back into order.

A batch is what is read at once: a pooled buffer and the cuts in it. Batches of one stream are
worked on by several threads, so they come out in any order; a `StreamBuild` puts the results
back into the order of the addresses, because that order in the packs makes a restore read
sequentially.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.storage.chunkids import Ids, ids_from_bytes
from cw_snapshot.storage.cuts import ChunkerParams, Cuts, as_pages, cut
from cw_snapshot.storage.interfaces import PageSource
from cw_snapshot.storage.manifest import EXTENT, ZERO, Extents
from cw_snapshot.storage.packs import Frame
from cw_snapshot.storage.pages import PAGE_SIZE, check_runs, page_addresses, read_units
from cw_snapshot.storage.pipeline import Pool

Buffer = NDArray[np.uint8]


def buffer_size(unit: int, params: ChunkerParams) -> int:
    """Bytes of a buffer for reads of `unit` bytes: an open chunk goes before them."""
    return unit + params.maximum


@dataclass(frozen=True)
class Cut:
    """A buffer and what was found in it. Pages from `cuts.open_from` on come again in the next one."""

    buffer: Buffer
    cuts: Cuts

    def chunks(self) -> list[memoryview]:
        """The bytes of each chunk, in order."""
        data = ~self.cuts.zero
        begins = self.cuts.first[data] * PAGE_SIZE
        ends = begins + self.cuts.pages[data] * PAGE_SIZE
        view = self.buffer.data
        return [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all extents, zeros included."""
        return int(self.cuts.pages.sum()) * PAGE_SIZE

    @property
    def zero_bytes(self) -> int:
        return int(self.cuts.pages[self.cuts.zero].sum()) * PAGE_SIZE


def read_cuts(source: PageSource, pool: Pool[Buffer], params: ChunkerParams, unit: int) -> Iterator[Cut]:
    """Read all of `source` in reads of `unit` bytes and cut it.

    Every buffer comes from `pool` and is the taker's to give back. One is held at a time.
    """
    runs = source.runs()
    check_runs(runs)
    left = sum(nbytes for _, nbytes in runs)
    carry, carried, carried_from = np.empty(params.maximum, dtype=np.uint8), 0, 0
    for pieces in read_units(runs, unit):
        buffer = pool.take()
        buffer[:carried] = carry[:carried]
        fill = carried
        for start, nbytes in pieces:
            source.read_into(start, buffer[fill : fill + nbytes].data)
            fill += nbytes
            left -= nbytes
        if carried:
            pieces.insert(0, (carried_from, carried))
        addresses = page_addresses(pieces)
        cuts = cut(as_pages(buffer[:fill]), addresses, params, last=not left)
        open_at = cuts.open_from * PAGE_SIZE
        carried = fill - open_at
        if carried:
            carry[:carried] = buffer[open_at:fill]
            carried_from = int(addresses[cuts.open_from])
        yield Cut(buffer, cuts)


@dataclass
class Result:
    """A batch after hashing: its ids, and the frames of the chunks that are to be stored."""

    cut: Cut
    ids: bytes
    frames: list[Frame]


@dataclass
class StreamBuild:
    """One stream while it is stored. Whoever changes it holds the operation's lock."""

    name: str
    size: int | None
    lane: str
    submitted: int = 0
    """Batches handed out so far: the sequence number of the next."""
    appended: int = 0
    """Batches whose frames are in packs: the sequence number of the next to be appended."""
    waiting: dict[int, Result] = field(default_factory=dict)
    """Results that are done, by sequence number, but not appended yet."""
    cuts: list[Cuts] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)

    def all_ids(self) -> Ids:
        """The chunk ids in order, one row per data extent."""
        return ids_from_bytes(b"".join(self.ids))

    def extents(self, chunks: NDArray[np.int64]) -> Extents:
        """The extents in order; `chunks` has the number of each data extent's chunk."""
        extents = np.empty(sum(len(cuts.first) for cuts in self.cuts), dtype=EXTENT)
        if not len(extents):
            return extents
        zero = np.concatenate([cuts.zero for cuts in self.cuts])
        extents["start"] = np.concatenate([cuts.start for cuts in self.cuts])
        extents["pages"] = np.concatenate([cuts.pages for cuts in self.cuts])
        extents["chunk"][zero] = ZERO
        extents["chunk"][~zero] = chunks
        return extents
