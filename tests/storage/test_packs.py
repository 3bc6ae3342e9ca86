from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import MemoryBackend
from storage_strategies import damaged, survives

from cw_snapshot.storage.errors import IntegrityError, PackDamagedError, UnsupportedFormatError
from cw_snapshot.storage.packs import (
    ENTRY_SIZE,
    HEADER_SIZE,
    TRAILER_SIZE,
    Entries,
    Frame,
    PackBuilder,
    pack_capacity,
    read_footer,
)

TARGET = 64 << 10


def frames(count: int, seed: int = 0) -> list[Frame]:
    rng = np.random.default_rng(seed)
    return [
        Frame(rng.bytes(32), int(rng.integers(0, 2)), 4096, rng.bytes(int(rng.integers(1, 4097))))
        for _ in range(count)
    ]


def pack(content: list[Frame]) -> bytes:
    builder = PackBuilder(
        memoryview(bytearray(pack_capacity(TARGET, 4096, 64))), target=TARGET, max_entries=64
    )
    for frame in content:
        builder.append(frame)
    return bytes(builder.seal())


def footer(data: bytes, guess: int = 64 << 10) -> Entries:
    backend = MemoryBackend()
    backend.put("packs/x", data)
    return read_footer(backend, "packs/x", len(data), tail_guess=guess)


@pytest.mark.parametrize("guess", [TRAILER_SIZE, TRAILER_SIZE + ENTRY_SIZE, 64 << 10])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_round_trip(count: int, guess: int) -> None:
    content = frames(count)
    data = pack(content)
    entries = footer(data, guess)
    assert [entry["id"].tobytes() for entry in entries] == [frame.chunk for frame in content]
    for entry, frame in zip(entries, content, strict=True):
        begin = int(entry["offset"])
        assert data[begin : begin + int(entry["stored"])] == frame.data
        assert (entry["codec"], entry["raw"]) == (frame.codec, frame.raw_size)


def test_the_documented_bytes() -> None:
    data = pack([Frame(b"i" * 32, 1, 8192, b"stored")])
    assert (HEADER_SIZE, ENTRY_SIZE, TRAILER_SIZE) == (16, 56, 56)
    assert data[:16] == b"CWSNPACK" + struct.pack("<II", 1, 0)
    assert data[16:22] == b"stored"
    assert data[22:78] == b"i" * 32 + struct.pack("<QII", 16, 6, 8192) + b"\x01" + bytes(7)
    assert data[78:] == struct.pack("<QII", 22, 1, 0) + blake3(data[22:78]).digest() + b"CWSNPEND"


def test_a_builder_says_when_it_is_full() -> None:
    capacity = pack_capacity(TARGET, 4096, 8)
    builder = PackBuilder(memoryview(bytearray(capacity)), target=TARGET, max_entries=8)
    for frame in [Frame(bytes(32), 0, 4096, bytes(1))] * 8:
        assert not builder.full
        builder.append(frame)
    assert builder.full
    builder = PackBuilder(memoryview(bytearray(capacity)), target=8192, max_entries=100)
    builder.append(Frame(bytes(32), 0, 4096, bytes(4096)))
    assert not builder.full
    builder.append(Frame(bytes(32), 0, 4096, bytes(4096)))
    assert builder.full


def test_the_fullest_pack_fits_its_buffer() -> None:
    capacity = pack_capacity(target=8192, max_chunk=4096, max_entries=3)
    builder = PackBuilder(memoryview(bytearray(capacity)), target=8192, max_entries=3)
    for size in (4095, 4096, 4096):
        assert not builder.full
        builder.append(Frame(bytes(32), 0, 4096, bytes(size)))
    assert builder.full
    assert len(footer(bytes(builder.seal()))) == 3


SOUND = pack(frames(5))


def test_every_flipped_bit_outside_the_frames_is_noticed() -> None:
    """Inside the frames the chunks' own hashes notice it. Flags and padding are covered too."""
    first_footer = len(SOUND) - TRAILER_SIZE - 5 * ENTRY_SIZE
    unused = {*range(12, 16), *range(len(SOUND) - 44, len(SOUND) - 40)}  # zeros, reserved for flags
    for at in [*range(HEADER_SIZE), *range(first_footer, len(SOUND))]:
        if at in unused:
            continue
        data = bytearray(SOUND)
        data[at] ^= 1 << at % 8
        with pytest.raises(IntegrityError) as error:
            footer(bytes(data))
        assert "packs/x" in error.value.message


def test_truncated_anywhere() -> None:
    for size in range(0, len(SOUND), 7):
        with pytest.raises(PackDamagedError):
            footer(SOUND[:size])


def test_newer() -> None:
    with pytest.raises(UnsupportedFormatError):
        footer(SOUND[:8] + struct.pack("<I", 2) + SOUND[12:])


def test_the_store_gives_less_than_was_listed() -> None:
    backend = MemoryBackend()
    backend.put("packs/x", SOUND[:-100])
    with pytest.raises(PackDamagedError, match="truncated"):
        read_footer(backend, "packs/x", len(SOUND))


def reseal(entries: bytes, frames_size: int) -> bytes:
    """A pack with any entries, and a trailer that fits them."""
    trailer = struct.pack(
        "<QII32s8s", 16 + frames_size, len(entries) // 56, 0, blake3(entries).digest(), b"CWSNPEND"
    )
    return b"CWSNPACK" + struct.pack("<II", 1, 0) + bytes(frames_size) + entries + trailer


@pytest.mark.parametrize(
    "rows",
    [
        [(16, 10, 4096), (20, 10, 4096)],  # overlap
        [(16, 10, 4096), (30, 6, 4096)],  # gap
        [(0, 20, 4096)],  # in the header
        [(16, 20, 4095)],
        [(16, 20, 0)],
        [(16, 20, 64 << 20)],
        [(16, 0, 4096), (16, 20, 4096)],
        [(16, 21, 4096)],
        [((1 << 64) - 4, 20, 4096)],
        [(16, 0xFFFFFFFF, 4096)],
    ],
)
def test_entries_that_can_not_be(rows: list[tuple[int, int, int]]) -> None:
    """A right checksum does not make them right."""
    entries = b"".join(struct.pack("<32sQIIB7x", b"i" * 32, *row, 0) for row in rows)
    with pytest.raises(PackDamagedError):
        footer(reseal(entries, 20))


@given(damaged(SOUND) | st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    survives(footer, data)


@given(damaged(SOUND[-TRAILER_SIZE - 5 * ENTRY_SIZE : -TRAILER_SIZE]))
def test_any_entries(entries: bytes) -> None:
    survives(footer, reseal(entries[: len(entries) // 56 * 56], 500))
