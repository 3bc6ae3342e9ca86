from __future__ import annotations

import numpy as np
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.storage.chunkids import chunk_id, id_hex, ids_from_list, unique_ids

some_ids = st.sampled_from(
    [bytes([a, b]) + bytes(29) + bytes([c]) for a in (0, 9) for b in (0, 1) for c in (0, 7)]
)


def test_keyed() -> None:
    assert chunk_id(b"data", b"k" * 32) == blake3(b"data", key=b"k" * 32).digest()
    assert chunk_id(b"data", b"k" * 32) != chunk_id(b"data", b"l" * 32)


def test_hex_of_a_row() -> None:
    one = chunk_id(b"x", b"k" * 32)
    assert id_hex(ids_from_list([b"\0" * 32, one])[1]) == one.hex()


@given(st.lists(some_ids, max_size=30))
def test_unique(ids: list[bytes]) -> None:
    different, inverse = unique_ids(ids_from_list(ids))
    assert [row.tobytes() for row in different] == list(dict.fromkeys(ids))
    assert [different[place].tobytes() for place in inverse] == ids
    assert inverse.dtype == np.int64
