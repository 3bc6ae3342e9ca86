"""Where chunks are: the index object of one take on one node, and all of them in memory.

    header  magic, version, number of packs, number of entries, repository id
    packs   one record per pack: digest, size of the object, number of entries
    entries the footers of these packs, one after the other

An index object is only a copy of pack footers: it can be lost and rebuilt.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.storage.chunkids import Ids
from cw_snapshot.storage.errors import ForeignObjectError, IndexDamagedError, UnsupportedFormatError
from cw_snapshot.storage.packs import (
    ENTRY,
    ENTRY_SIZE,
    HEADER_SIZE,
    MAX_PACK_SIZE,
    TRAILER_SIZE,
    Entries,
    check_entries,
)
from cw_snapshot.storage.pages import Bytes

VERSION = 1
MAX_INDEX_SIZE = 4 << 30
"""Bytes of one index object that a reader accepts: 75 million chunks."""

_MAGIC = b"CWSNINDX"
_HEADER = struct.Struct("<8sIIQ16s")
_PACK = np.dtype([("digest", "u1", (32,)), ("size", "<u8"), ("count", "<u4"), ("zero", "<u4")])

_Word = TypeVar("_Word", np.uint64, np.uint32, np.uint8)

# More different ids than this with equal first words are no hashes.
_MAX_TWINS = 256


@dataclass(frozen=True)
class IndexedPack:
    """One pack and the chunks in it."""

    digest: str
    size: int
    """Bytes of the whole object."""
    entries: Entries


def encode_index(packs: Sequence[IndexedPack], repository_id: str) -> bytes:
    """The bytes of an index object over `packs`; the same for the same packs in any order."""
    packs = sorted(packs, key=lambda pack: pack.digest)
    table = np.zeros(len(packs), dtype=_PACK)
    for row, pack in zip(table, packs, strict=True):
        row["digest"] = np.frombuffer(bytes.fromhex(pack.digest), dtype=np.uint8)
        row["size"] = pack.size
        row["count"] = len(pack.entries)
    total = int(table["count"].sum(dtype=np.uint64))
    header = _HEADER.pack(_MAGIC, VERSION, len(packs), total, bytes.fromhex(repository_id))
    return b"".join([header, table.tobytes(), *(pack.entries.tobytes() for pack in packs)])


def decode_index(data: Bytes, name: str, repository_id: str) -> list[IndexedPack]:
    """Parse the index object `name`. The entries are views of `data`.

    :raises IndexDamagedError: it is not an index, whatever the bytes.
    :raises ForeignObjectError: it was written for another repository.
    """
    if len(data) < _HEADER.size:
        raise IndexDamagedError(name=name, what="it is too short")
    magic, version, pack_count, total, owner = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise IndexDamagedError(name=name, what="it does not begin like an index")
    if version != VERSION:
        raise UnsupportedFormatError(name=name, found=f"version {version}", supported=f"version {VERSION}")
    if owner.hex() != repository_id:
        raise ForeignObjectError(name=name, found=owner.hex(), expected=repository_id)
    if len(data) != _HEADER.size + pack_count * _PACK.itemsize + total * ENTRY_SIZE:
        raise IndexDamagedError(name=name, what="its size does not fit what it says it holds")
    table = np.frombuffer(data, dtype=_PACK, count=pack_count, offset=_HEADER.size)
    if int(table["count"].sum(dtype=np.uint64)) != total:
        raise IndexDamagedError(name=name, what="its packs do not add up to its entries")
    entries = np.frombuffer(data, dtype=ENTRY, count=total, offset=_HEADER.size + pack_count * _PACK.itemsize)
    packs, begin = [], 0
    for row in table:
        size, count = int(row["size"]), int(row["count"])
        part = entries[begin : begin + count]
        if not HEADER_SIZE + TRAILER_SIZE <= size <= MAX_PACK_SIZE:
            raise IndexDamagedError(name=name, what="a pack has a size that can't be")
        check_entries(part, size - TRAILER_SIZE - count * ENTRY_SIZE, name, IndexDamagedError)
        packs.append(IndexedPack(digest=row["digest"].tobytes().hex(), size=size, entries=part))
        begin += count
    return packs


@dataclass(frozen=True)
class Locations:
    """Where chunks are stored; arrays of equal length, one row per chunk asked for."""

    pack: NDArray[np.uint32]
    """Row in `ChunkIndex.packs`."""
    offset: NDArray[np.uint32]
    stored: NDArray[np.uint32]
    raw: NDArray[np.uint32]
    """Sizes and offset in bytes."""
    codec: NDArray[np.uint8]


class ChunkIndex:
    """All chunks of a repository, sorted by id: 49 bytes per chunk. Immutable, so thread-safe."""

    def __init__(self, packs: Iterable[IndexedPack], lost: Collection[str] = ()) -> None:
        """Build from `packs`; those whose digests are in `lost` hold nothing that can be relied on.

        :raises IndexDamagedError: the ids can't be hashes.
        """
        # Packs that are there come first, and the sort is stable: of two copies of a chunk the one
        # in a pack that is there is found first.
        ordered = sorted(packs, key=lambda pack: pack.digest in lost)
        self.packs: tuple[str, ...] = tuple(pack.digest for pack in ordered)
        self.pack_sizes: tuple[int, ...] = tuple(pack.size for pack in ordered)
        self._first_lost = sum(digest not in lost for digest in self.packs)

        counts = np.array([len(pack.entries) for pack in ordered], dtype=np.int64)
        words = [pack.entries["id"] for pack in ordered]
        head = _joined([part[:, 0] for part in words], np.uint64)
        order = np.argsort(head, kind="stable")
        self._head = head[order]
        _check_spread(self._head)
        self._tail = np.empty((len(order), 3), dtype=np.uint64)
        for column in range(3):
            self._tail[:, column] = _joined([part[:, column + 1] for part in words], np.uint64)[order]
        self._pack = np.repeat(np.arange(len(ordered), dtype=np.uint32), counts)[order]
        self._offset = _joined([pack.entries["offset"] for pack in ordered], np.uint32)[order]
        self._stored = _joined([pack.entries["stored"] for pack in ordered], np.uint32)[order]
        self._raw = _joined([pack.entries["raw"] for pack in ordered], np.uint32)[order]
        self._codec = _joined([pack.entries["codec"] for pack in ordered], np.uint8)[order]

    def __len__(self) -> int:
        """Number of stored chunks, copies included."""
        return len(self._head)

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """The row of each id in this index, or -1."""
        found = np.full(len(ids), -1, dtype=np.int64)
        if not len(self._head):
            return found
        head, tail = np.ascontiguousarray(ids[:, 0]), ids[:, 1:]
        at = np.searchsorted(self._head, head)
        asking = np.arange(len(ids))
        while len(asking):  # again only for ids whose first word is also that of another
            asking = asking[at[asking] < len(self._head)]
            asking = asking[self._head[at[asking]] == head[asking]]
            same = (self._tail[at[asking]] == tail[asking]).all(axis=1)
            found[asking[same]] = at[asking[same]]
            asking = asking[~same]
            at[asking] += 1
        return found

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of `ids` are stored in packs that are there."""
        rows = self.find(ids)
        present = rows >= 0
        if self._first_lost < len(self.packs):
            present[present] = self._pack[rows[present]] < self._first_lost
        return present

    def locations(self, rows: NDArray[np.int64]) -> Locations:
        """What `find` found; no row may be -1."""
        return Locations(
            pack=self._pack[rows],
            offset=self._offset[rows],
            stored=self._stored[rows],
            raw=self._raw[rows],
            codec=self._codec[rows],
        )

    def is_lost(self, pack: int) -> bool:
        """Whether row `pack` of `packs` was given as lost."""
        return pack >= self._first_lost


def _joined(parts: Sequence[NDArray[Any]], dtype: type[_Word]) -> NDArray[_Word]:
    """The parts as one array of `dtype`."""
    joined = np.empty(sum(map(len, parts)), dtype=dtype)
    if parts:
        np.concatenate(parts, out=joined, casting="same_kind")
    return joined


def _check_spread(head: NDArray[np.uint64]) -> None:
    if len(head) > _MAX_TWINS and (head[_MAX_TWINS:] == head[:-_MAX_TWINS]).any():
        raise IndexDamagedError(name="of the repository", what="it holds ids that can't be hashes")
