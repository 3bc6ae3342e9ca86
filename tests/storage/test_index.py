from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import indexed_pack, random_ids
from storage_strategies import damaged, survives

from cw_snapshot.storage.chunkids import ids_from_list
from cw_snapshot.storage.errors import ForeignObjectError, IndexDamagedError, UnsupportedFormatError
from cw_snapshot.storage.index import ChunkIndex, IndexedPack, decode_index, encode_index
from cw_snapshot.storage.packs import ENTRY, HEADER_SIZE

OWNER = "ab" * 16


PACKS = [indexed_pack(random_ids(5, 1), 1), indexed_pack([], 2), indexed_pack(random_ids(3, 2), 3)]
SOUND = encode_index(PACKS, OWNER)


def test_round_trip() -> None:
    found = decode_index(SOUND, "index/x", OWNER)
    assert [(pack.digest, pack.size, pack.entries.tobytes()) for pack in found] == [
        (pack.digest, pack.size, pack.entries.tobytes()) for pack in PACKS
    ]


def test_the_documented_bytes() -> None:
    assert SOUND[:40] == b"CWSNINDX" + struct.pack("<IIQ", 1, 3, 8) + bytes.fromhex(OWNER)
    assert SOUND[40:88] == bytes.fromhex(PACKS[0].digest) + struct.pack("<QII", PACKS[0].size, 5, 0)
    assert SOUND[40 + 3 * 48 :] == b"".join(pack.entries.tobytes() for pack in PACKS)


def test_foreign_and_newer() -> None:
    with pytest.raises(ForeignObjectError, match="index/x"):
        decode_index(SOUND, "index/x", "cd" * 16)
    with pytest.raises(UnsupportedFormatError, match="index/x"):
        decode_index(SOUND[:8] + struct.pack("<I", 2) + SOUND[12:], "index/x", OWNER)


def test_truncated_anywhere() -> None:
    for size in range(len(SOUND)):
        with pytest.raises(IndexDamagedError):
            decode_index(SOUND[:size], "index/x", OWNER)


@given(damaged(SOUND) | st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    survives(lambda d: ChunkIndex(decode_index(d, "index/x", OWNER)), data)


few_ids = st.integers(0, 40).map(lambda n: n.to_bytes(8, "little") * 4)
# Ids of equal first words: a search by the first word alone would be wrong.
twin_ids = st.integers(0, 20).map(lambda n: bytes(8) + n.to_bytes(24, "little"))


@given(
    st.lists(st.lists(few_ids | twin_ids, max_size=12), max_size=4), st.lists(few_ids | twin_ids, max_size=30)
)
def test_find_like_a_dict(content: list[list[bytes]], asked: list[bytes]) -> None:
    index = ChunkIndex(indexed_pack(ids, number) for number, ids in enumerate(content))
    places: dict[bytes, set[tuple[str, int]]] = {}
    for number, ids in enumerate(content):
        for at, chunk in enumerate(ids):
            places.setdefault(chunk, set()).add((f"{number:064x}", HEADER_SIZE + 100 * at))
    rows = index.find(ids_from_list(asked))
    assert [row >= 0 for row in rows.tolist()] == [chunk in places for chunk in asked]
    assert index.contains(ids_from_list(asked)).tolist() == [chunk in places for chunk in asked]
    here = np.flatnonzero(rows >= 0)
    found = index.locations(rows[here])
    for at, pack, offset in zip(here.tolist(), found.pack.tolist(), found.offset.tolist(), strict=True):
        assert (index.packs[pack], offset) in places[asked[at]]
    assert (found.stored == 100).all()
    assert (found.raw == 4096).all()
    assert (found.codec == 1).all()
    assert len(index) == sum(map(len, content))


def test_empty() -> None:
    index = ChunkIndex([])
    assert len(index) == 0
    assert index.find(ids_from_list(random_ids(3))).tolist() == [-1, -1, -1]
    assert index.contains(ids_from_list([])).tolist() == []


def test_chunks_of_lost_packs_are_not_relied_on_but_can_be_named() -> None:
    shared, only = random_ids(2)
    gone, there = indexed_pack([shared, only], 1), indexed_pack([shared], 2)
    index = ChunkIndex([gone, there], lost={gone.digest})
    asked = ids_from_list([shared, only])
    assert index.contains(asked).tolist() == [True, False]
    found = index.locations(index.find(asked))
    assert [index.packs[pack] for pack in found.pack.tolist()] == [there.digest, gone.digest]
    assert [index.is_lost(pack) for pack in found.pack.tolist()] == [False, True]


def test_ids_that_are_no_hashes_do_not_make_lookups_slow() -> None:
    ids = [bytes(8) + n.to_bytes(24, "little") for n in range(2000)]
    with pytest.raises(IndexDamagedError, match="hashes"):
        ChunkIndex([indexed_pack(ids)])


def test_a_million_chunks() -> None:
    """49 bytes per chunk, and lookups of thousands at a time in milliseconds."""
    count = 1_000_000
    rng = np.random.default_rng(1)
    entries = np.zeros(count, dtype=ENTRY)
    entries["id"] = rng.integers(0, 1 << 63, (count, 4), dtype=np.uint64)
    entries["stored"], entries["raw"] = 100, 4096
    index = ChunkIndex([IndexedPack("0" * 64, 1 << 30, entries)])
    arrays = [value for value in vars(index).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 49 * count
    asked = np.concatenate([entries["id"][::100], rng.integers(0, 1 << 63, (10_000, 4), dtype=np.uint64)])
    begin = time.perf_counter()
    found = index.contains(asked)
    assert time.perf_counter() - begin < 0.5
    assert found.tolist() == [True] * 10_000 + [False] * 10_000
