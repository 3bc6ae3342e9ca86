"""Which bytes of which packs are read, and which pages each chunk becomes. Pure.

Chunks are sorted by pack and offset, and neighbours are read together, so that a restore reads
packs from front to back in large pieces and decompresses each chunk once, however many streams
want it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.storage.chunkids import Ids
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.manifest import ZERO, Extents
from cw_snapshot.storage.pages import PAGE_SIZE


@dataclass(frozen=True)
class ReadLimits:
    """How neighbours are read together. Bytes."""

    longest: int = 8 << 20
    """Of one read, unless a single chunk is longer."""
    gap: int = 256 << 10
    """Read and thrown away rather than asked around."""


@dataclass(frozen=True)
class ChunkTable:
    """Chunks to read, by pack and offset; arrays of equal length."""

    ids: Ids
    pack: NDArray[np.uint32]
    """Row in the index's `packs`."""
    offset: NDArray[np.uint32]
    stored: NDArray[np.uint32]
    raw: NDArray[np.uint32]
    codec: NDArray[np.uint8]
    number: NDArray[np.int64]
    """The chunk's place in the ids that were asked for."""

    def __len__(self) -> int:
        return len(self.pack)


@dataclass(frozen=True)
class Read:
    """One ranged read of a pack, and the rows of the chunk table that it gives."""

    pack: int
    offset: int
    length: int
    first: int
    last: int
    """One beyond the last row."""


@dataclass(frozen=True)
class Deliveries:
    """Where chunks go: those of table row r are the entries `bounds[r]` to `bounds[r + 1]`."""

    bounds: NDArray[np.int64]
    sink: NDArray[np.int64]
    """Number of the stream, in the order given."""
    start: NDArray[np.uint64]
    """Address."""


@dataclass(frozen=True)
class ZeroRun:
    sink: int
    start: int
    nbytes: int


def chunk_table(
    ids: Ids, numbers: NDArray[np.int64], rows: NDArray[np.int64], index: ChunkIndex
) -> ChunkTable:
    """The chunks `ids[numbers]`, which `index` has at `rows`, sorted by pack and offset."""
    found = index.locations(rows)
    order = np.lexsort((found.offset, found.pack))
    return ChunkTable(
        ids=ids[numbers][order],
        pack=found.pack[order],
        offset=found.offset[order],
        stored=found.stored[order],
        raw=found.raw[order],
        codec=found.codec[order],
        number=numbers[order],
    )


def select_rows(table: ChunkTable, rows: NDArray[np.int64]) -> ChunkTable:
    """Some rows of `table`, ascending."""
    return ChunkTable(**{field.name: getattr(table, field.name)[rows] for field in fields(table)})


def find_wrong_length(
    streams: Sequence[Extents], known: NDArray[np.int64], raw: NDArray[np.uint32]
) -> int | None:
    """The number of a chunk that is not as long in its pack as the extents that name it, or None.

    :param known: numbers of the chunks whose length in the pack is known.
    :param raw: that length in bytes, by number.
    """
    is_known = np.zeros(len(raw), dtype=np.bool_)
    is_known[known] = True
    for extents in streams:
        data = extents[extents["chunk"] != ZERO]
        data = data[is_known[data["chunk"]]]
        wrong = np.flatnonzero(raw[data["chunk"]] != data["pages"].astype(np.uint64) * PAGE_SIZE)
        if len(wrong):
            return int(data["chunk"][wrong[0]])
    return None


def plan_reads(table: ChunkTable, limits: ReadLimits) -> list[Read]:
    """Reads that together give every row of `table`, in its order."""
    if not len(table):
        return []
    offset = table.offset.astype(np.int64)
    end = offset + table.stored
    apart = (table.pack[1:] != table.pack[:-1]) | (offset[1:] - end[:-1] > limits.gap)
    firsts = np.flatnonzero(np.concatenate([[True], apart])).tolist()
    reads = []
    for first, stop in zip(firsts, [*firsts[1:], len(table)], strict=True):
        while first < stop:
            begin = int(offset[first])
            fits = first + int(np.searchsorted(end[first:stop], begin + limits.longest, side="right"))
            last = max(fits, first + 1)
            length = int(end[last - 1]) - begin
            reads.append(
                Read(pack=int(table.pack[first]), offset=begin, length=length, first=first, last=last)
            )
            first = last
    return reads


def wanted_chunks(streams: Sequence[Extents]) -> NDArray[np.int64]:
    """The numbers of all chunks that the streams' extents name, ascending."""
    numbers = [extents["chunk"][extents["chunk"] != ZERO] for extents in streams]
    return np.unique(np.concatenate(numbers)).astype(np.int64) if numbers else np.zeros(0, np.int64)


def plan_deliveries(streams: Sequence[Extents], table: ChunkTable, chunk_count: int) -> Deliveries:
    """For every row of `table`, the extents of `streams` that want it."""
    row_of = np.zeros(chunk_count, dtype=np.int64)
    row_of[table.number] = np.arange(len(table))
    data = [extents[extents["chunk"] != ZERO] for extents in streams]
    sink = np.repeat(np.arange(len(data)), [len(extents) for extents in data])
    start = np.concatenate([np.zeros(0, np.uint64), *(extents["start"] for extents in data)])
    chunk = np.concatenate([np.zeros(0, np.uint32), *(extents["chunk"] for extents in data)])
    row = row_of[chunk]
    order = np.argsort(row, kind="stable")
    bounds = np.zeros(len(table) + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=len(table)), out=bounds[1:])
    return Deliveries(bounds=bounds, sink=sink[order], start=start[order])


def zero_runs(streams: Sequence[Extents]) -> list[ZeroRun]:
    """All ZERO extents."""
    runs = []
    for sink, extents in enumerate(streams):
        zero = extents[extents["chunk"] == ZERO]
        sizes = zero["pages"].astype(np.int64) * PAGE_SIZE
        runs += [
            ZeroRun(sink, start, nbytes)
            for start, nbytes in zip(zero["start"].tolist(), sizes.tolist(), strict=True)
        ]
    return runs
