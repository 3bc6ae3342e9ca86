"""The pack: an object that holds many stored chunks, with its own index at the end.

    header   magic, version
    frames   the stored chunks, one after the other without gaps
    footer   one entry per frame: id, offset, stored size, raw size, codec
    trailer  where the footer is, how many entries, its checksum, magic

All integers are little-endian. docs/internals/repository.md has the offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.cuts import MAX_CHUNK_SIZE
from cw_snapshot.storage.errors import (
    IntegrityError,
    ObjectTooShortError,
    PackDamagedError,
    UnsupportedFormatError,
)
from cw_snapshot.storage.pages import PAGE_SIZE, Bytes

VERSION = 1
MAX_PACK_SIZE = (1 << 32) - 1
"""Bytes. Offsets in a pack fit 32 bits in memory."""

_MAGIC = b"CWSNPACK"
_END_MAGIC = b"CWSNPEND"
_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<32sQIIB7x")
_TRAILER = struct.Struct("<QII32s8s")

HEADER_SIZE = _HEADER.size
ENTRY_SIZE = _ENTRY.size
TRAILER_SIZE = _TRAILER.size

ENTRY = np.dtype(
    {
        "names": ["id", "offset", "stored", "raw", "codec"],
        "formats": [("<u8", (4,)), "<u8", "<u4", "<u4", "u1"],
        "offsets": [0, 32, 40, 44, 48],
        "itemsize": ENTRY_SIZE,
    }
)
"""A footer entry as numpy reads it; the same bytes as in the pack."""

Entries = NDArray[np.void]
"""Footer entries, shape (n,), dtype `ENTRY`."""


@dataclass(frozen=True)
class Frame:
    """One chunk as it is stored."""

    chunk: bytes
    codec: int
    raw_size: int
    data: Bytes


def pack_capacity(target: int, max_chunk: int, max_entries: int) -> int:
    """Bytes of a buffer that holds any pack that grows by one chunk beyond `target`."""
    return HEADER_SIZE + target + max_chunk + max_entries * ENTRY_SIZE + TRAILER_SIZE


class PackBuilder:
    """Builds one pack in a buffer of `pack_capacity` bytes. Not thread-safe."""

    def __init__(self, buffer: memoryview, *, target: int, max_entries: int) -> None:
        self._buffer = buffer
        self._target = target
        self._max_entries = max_entries
        self._footer = bytearray()
        _HEADER.pack_into(buffer, 0, _MAGIC, VERSION, 0)
        self._fill = HEADER_SIZE

    @property
    def size(self) -> int:
        """Bytes so far, without the footer."""
        return self._fill

    @property
    def full(self) -> bool:
        """No more frames should go in."""
        return (
            self._fill - HEADER_SIZE >= self._target or len(self._footer) // ENTRY_SIZE >= self._max_entries
        )

    @property
    def footer(self) -> bytes:
        """The entries so far."""
        return bytes(self._footer)

    def append(self, frame: Frame) -> None:
        stored = len(frame.data)
        self._buffer[self._fill : self._fill + stored] = frame.data
        self._footer += _ENTRY.pack(frame.chunk, self._fill, stored, frame.raw_size, frame.codec)
        self._fill += stored

    def seal(self) -> memoryview:
        """Write footer and trailer; the whole pack, a view of the buffer."""
        end = self._fill + len(self._footer)
        self._buffer[self._fill : end] = self._footer
        count = len(self._footer) // ENTRY_SIZE
        _TRAILER.pack_into(self._buffer, end, self._fill, count, 0, blake3(self._footer).digest(), _END_MAGIC)
        return self._buffer[: end + TRAILER_SIZE]


def read_footer(backend: Backend, name: str, size: int, *, tail_guess: int = 64 << 10) -> Entries:
    """The entries of the pack `name` of `size` bytes, from two or three small reads.

    :raises PackDamagedError: it is not a whole pack.
    """
    if not HEADER_SIZE + TRAILER_SIZE <= size <= MAX_PACK_SIZE:
        raise PackDamagedError(name=name, what=f"{size} bytes can't be a pack")
    try:
        check_header(backend.get_range(name, 0, HEADER_SIZE), name)
        tail_size = min(size, tail_guess)
        tail = memoryview(backend.get_range(name, size - tail_size, tail_size))
        footer_size = parse_trailer(tail[-TRAILER_SIZE:], name, size)
        if footer_size + TRAILER_SIZE > tail_size:
            begin = size - TRAILER_SIZE - footer_size
            tail = memoryview(backend.get_range(name, begin, footer_size + TRAILER_SIZE))
    except ObjectTooShortError as error:
        raise PackDamagedError(name=name, what="it was truncated") from error
    return parse_footer(tail[-TRAILER_SIZE - footer_size :], name)


def check_header(data: Bytes, name: str) -> None:
    """Raise unless `data`, the first `HEADER_SIZE` bytes, begins a pack of this version."""
    magic, version, _ = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise PackDamagedError(name=name, what="it does not begin like a pack")
    if version != VERSION:
        raise UnsupportedFormatError(name=name, found=f"version {version}", supported=f"version {VERSION}")


def parse_trailer(data: Bytes, name: str, size: int) -> int:
    """The footer's size in bytes, from the last `TRAILER_SIZE` bytes of a pack of `size` bytes."""
    footer_at, count, _, _, magic = _TRAILER.unpack(data)
    if magic != _END_MAGIC:
        raise PackDamagedError(name=name, what="it does not end like a pack; it may be truncated")
    footer_size = int(count) * ENTRY_SIZE
    if footer_at < HEADER_SIZE or footer_at + footer_size + TRAILER_SIZE != size:
        raise PackDamagedError(name=name, what="its trailer points outside of it")
    return footer_size


def parse_footer(data: memoryview, name: str) -> Entries:
    """The entries in `data`, which is exactly the footer and the trailer of a pack."""
    footer_at, _, _, checksum, _ = _TRAILER.unpack(data[-TRAILER_SIZE:])
    footer = data[:-TRAILER_SIZE]
    if blake3(footer).digest() != checksum:
        raise PackDamagedError(name=name, what="its footer does not match its checksum")
    entries = np.frombuffer(footer, dtype=ENTRY)
    check_entries(entries, footer_at, name, PackDamagedError)
    return entries


def check_entries(entries: Entries, frames_end: int, name: str, damaged: type[IntegrityError]) -> None:
    """Raise `damaged` unless the entries cover the frames of one pack, without gap or overlap."""
    offset, stored, raw = entries["offset"], entries["stored"].astype(np.uint64), entries["raw"]
    begins = HEADER_SIZE + np.cumsum(stored) - stored
    end = HEADER_SIZE + int(stored.sum())
    if end != frames_end or not np.array_equal(offset, begins):
        raise damaged(name=name, what="its entries do not cover its frames")
    if (raw % PAGE_SIZE != 0).any() or (raw == 0).any() or (raw > MAX_CHUNK_SIZE).any():
        raise damaged(name=name, what="an entry has a chunk size that can't be")
    if (stored > raw).any() or (stored == 0).any():
        raise damaged(name=name, what="an entry has a stored size that can't be")
