"""Chunk ids: BLAKE3-256 of a chunk, keyed with the repository's key.

In bulk an id is a row of four 64-bit words, so that millions of them are one array of shape
(n, 4) that numpy can sort and compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from cw_snapshot.storage.pages import Bytes

ID_BYTES = 32

Ids = NDArray[np.uint64]
"""Chunk ids, shape (n, 4), the id's bytes in order in memory."""


def chunk_id(data: Bytes, key: bytes) -> bytes:
    """The id of a chunk. Releases the GIL while it hashes."""
    return blake3(data, key=key).digest()


def ids_from_bytes(data: Bytes) -> Ids:
    """View concatenated ids as rows, without a copy."""
    return np.frombuffer(data, dtype="<u8").reshape(-1, 4)


def ids_from_list(ids: Sequence[bytes]) -> Ids:
    return ids_from_bytes(b"".join(ids))


def id_hex(row: Ids) -> str:
    """One row as hexadecimal digits."""
    return np.ascontiguousarray(row).tobytes().hex()


def unique_ids(ids: Ids) -> tuple[Ids, NDArray[np.int64]]:
    """The different ids in the order of their first appearance, and for every row its place in them."""
    if not len(ids):
        return ids, np.zeros(0, dtype=np.int64)
    order = np.lexsort(ids.T)
    ordered = ids[order]
    is_new = np.ones(len(ids), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    # lexsort is stable: the first row of a group of equals is the one that appeared first.
    firsts = order[is_new]
    by_appearance = np.argsort(firsts)
    place = np.empty(len(firsts), dtype=np.int64)
    place[by_appearance] = np.arange(len(firsts))
    inverse = np.empty(len(ids), dtype=np.int64)
    inverse[order] = place[np.cumsum(is_new) - 1]
    return ids[firsts[by_appearance]], inverse
