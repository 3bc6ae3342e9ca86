"""The manifest: what one tree's part of a snapshot is made of.

    header   magic, version, size of the payload
    payload  one zstd frame: counts, a JSON header, the chunk ids, the extents

The JSON header holds the caller's metadata and the table of streams; each stream owns a range
of the extents. An extent is a run of pages that is one chunk, or ZERO.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from cw_snapshot.storage.chunkids import ID_BYTES, Ids, ids_from_bytes
from cw_snapshot.storage.codec import unzstd
from cw_snapshot.storage.cuts import MAX_CHUNK_SIZE
from cw_snapshot.storage.documents import Fields, canonical, parse_object
from cw_snapshot.storage.errors import ForeignObjectError, ManifestDamagedError, UnsupportedFormatError
from cw_snapshot.storage.pages import ADDRESS_LIMIT, PAGE_SIZE, Bytes

VERSION = 1
SCHEMA = "cw-snapshot/manifest/1"
MAX_MANIFEST_SIZE = 1 << 30
"""Bytes of a manifest object that a reader accepts."""
MAX_PAYLOAD_SIZE = 2 << 30
"""Bytes of its decompressed payload that a reader accepts: some 40 million extents."""
MAX_HEADER_SIZE = 64 << 20
"""Bytes of the JSON header in it that a reader accepts."""
ZSTD_LEVEL = 3

ZERO = 0xFFFFFFFF
"""In place of a chunk's number: the pages are all zero."""

EXTENT = np.dtype([("start", "<u8"), ("pages", "<u4"), ("chunk", "<u4")])
Extents = NDArray[np.void]
"""Shape (n,), dtype `EXTENT`: address of the first page in bytes, number of pages, chunk number."""

_MAGIC = b"CWSNMANI"
_HEADER = struct.Struct("<8sIIQ")
_COUNTS = struct.Struct("<QQQ")
_MAX_NAME = 1024


@dataclass(frozen=True)
class Stream:
    """One stream of a manifest."""

    name: str
    size: int | None
    """Bytes of the file it was, or None for something without a size (a process's memory)."""
    extents: Extents
    """In address order, without overlap."""


@dataclass(frozen=True)
class Manifest:
    metadata: Mapping[str, Any]
    """The caller's; not looked at here."""
    streams: Mapping[str, Stream]
    """By name, in the order they were stored."""
    chunks: Ids
    """The different chunks of all streams."""


@dataclass(frozen=True)
class ManifestRef:
    """A stored manifest, as the commit names it."""

    digest: str
    """The name part of the object, 64 hexadecimal digits."""
    size: int
    """Bytes of the object."""
    index: str | None = None
    """The index object written with it; None if all its chunks were stored before."""


def check_stream_name(name: str) -> None:
    """Raise ValueError unless `name` is printable parts joined by `/`, none of them empty, . or .."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise ValueError(f"{name[:80]!r} can't name a stream")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name[:80]!r} has a part that can't be in the name of a stream")


def join_zero_extents(extents: Extents) -> Extents:
    """Join ZERO extents that touch. They were found read by read; the manifest tells nothing of that."""
    if len(extents) < 2:
        return extents
    pages = extents["pages"].astype(np.uint64)
    ends = extents["start"] + pages * np.uint64(PAGE_SIZE)
    zero = extents["chunk"] == ZERO
    begins = np.ones(len(extents), dtype=np.bool_)
    begins[1:] = ~(zero[1:] & zero[:-1] & (extents["start"][1:] == ends[:-1]))
    first = np.flatnonzero(begins)
    joined = np.add.reduceat(pages, first)
    if (joined >= 1 << 32).any():  # 16 TiB of zeros in one run
        return extents
    result = extents[first]
    result["pages"] = joined
    return result


def encode_manifest(manifest: Manifest, repository_id: str) -> bytes:
    """The bytes of the manifest object.

    :raises ValueError: the metadata is not JSON, or the manifest is larger than a reader accepts.
    """
    table, at = [], 0
    for stream in manifest.streams.values():
        table.append({"name": stream.name, "size": stream.size, "first": at, "count": len(stream.extents)})
        at += len(stream.extents)
    header = canonical(
        {
            "schema": SCHEMA,
            "repository": repository_id,
            "metadata": dict(manifest.metadata),
            "streams": table,
        }
    )
    header += b" " * (-len(header) % 8)  # so that the tables behind it are aligned
    payload = b"".join(
        [
            _COUNTS.pack(len(header), len(manifest.chunks), at),
            header,
            manifest.chunks.tobytes(),
            *(stream.extents.tobytes() for stream in manifest.streams.values()),
        ]
    )
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(payload)
    for size, limit in (
        (len(header), MAX_HEADER_SIZE),
        (len(payload), MAX_PAYLOAD_SIZE),
        (_HEADER.size + len(packed), MAX_MANIFEST_SIZE),
    ):
        if size > limit:
            raise ValueError(f"the manifest, or a part of it, would have {size} bytes; {limit} are allowed")
    return _HEADER.pack(_MAGIC, VERSION, 0, len(payload)) + packed


def decode_manifest(
    data: Bytes, name: str, repository_id: str, *, max_payload: int = MAX_PAYLOAD_SIZE
) -> Manifest:
    """Parse the manifest object `name`.

    Sizes are compared before anything is allocated: at most `max_payload` bytes (and the arrays
    to check them) are, whatever the object claims.

    :raises ManifestDamagedError: it is not a manifest, whatever the bytes.
    :raises ForeignObjectError: it was written for another repository.
    """
    try:
        payload = _decompress(memoryview(data), name, max_payload)
        header, chunks, extents = _split(payload)
        fields = Fields(header)
        schema = fields.text("schema")
        if schema != SCHEMA:
            raise UnsupportedFormatError(name=name, found=schema[:80], supported=SCHEMA)
        owner = fields.text("repository")
        if owner != repository_id:
            raise ForeignObjectError(name=name, found=owner[:80], expected=repository_id)
        _check_extents(extents, len(chunks))
        streams = _streams(fields.sequence("streams"), extents)
        return Manifest(metadata=fields.mapping("metadata"), streams=streams, chunks=chunks)
    except ValueError as error:
        raise ManifestDamagedError(name=name, what=str(error)) from error


def _decompress(data: memoryview, name: str, max_payload: int) -> bytes:
    if len(data) < _HEADER.size:
        raise ValueError("it is too short")
    magic, version, _, size = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it does not begin like a manifest")
    if version != VERSION:
        raise UnsupportedFormatError(name=name, found=f"version {version}", supported=f"version {VERSION}")
    if not _COUNTS.size <= size <= max_payload:
        raise ValueError(f"it claims to decompress to {size} bytes; {max_payload} are allowed")
    return unzstd(zstandard.ZstdDecompressor(), data[_HEADER.size :], size)


def _split(payload: bytes) -> tuple[dict[str, Any], Ids, Extents]:
    header_size, chunk_count, extent_count = _COUNTS.unpack_from(payload)
    ids_at = _COUNTS.size + header_size
    extents_at = ids_at + chunk_count * ID_BYTES
    if extents_at + extent_count * EXTENT.itemsize != len(payload):
        raise ValueError("its tables do not fit its size")
    view = memoryview(payload)
    if header_size > MAX_HEADER_SIZE:
        raise ValueError(f"its header has {header_size} bytes; {MAX_HEADER_SIZE} are allowed")
    header = parse_object(bytes(view[_COUNTS.size : ids_at]))
    return header, ids_from_bytes(view[ids_at:extents_at]), np.frombuffer(view[extents_at:], dtype=EXTENT)


def _check_extents(extents: Extents, chunk_count: int) -> None:
    """Raise ValueError for an extent that can't be, or two that disagree about a chunk's length."""
    start, pages, chunk = extents["start"], extents["pages"].astype(np.uint64), extents["chunk"]
    if (pages == 0).any() or (start % PAGE_SIZE != 0).any():
        raise ValueError("an extent is not made of whole pages")
    if (start // PAGE_SIZE + pages > ADDRESS_LIMIT // PAGE_SIZE).any():
        raise ValueError("an extent reaches beyond the last address")
    data = chunk != ZERO
    chunk, pages = chunk[data], pages[data]
    if (chunk >= chunk_count).any():
        raise ValueError("an extent names a chunk that is not listed")
    if (pages > MAX_CHUNK_SIZE // PAGE_SIZE).any():
        raise ValueError("a chunk is longer than any can be")
    lengths = np.zeros(chunk_count, dtype=np.uint64)
    lengths[chunk] = pages
    if (lengths[chunk] != pages).any():
        raise ValueError("two extents disagree about the length of a chunk")


def _streams(table: Sequence[Any], extents: Extents) -> dict[str, Stream]:
    streams: dict[str, Stream] = {}
    at = 0
    for row in table:
        fields = Fields(row, "a stream")
        name, size = fields.text("name"), fields.optional_number("size")
        first, count = fields.number("first"), fields.number("count")
        check_stream_name(name)
        if name in streams:
            raise ValueError(f'stream "{name}" is listed twice')
        if first != at or first + count > len(extents):
            raise ValueError(f'stream "{name}" does not own its extents')
        own = extents[first : first + count]
        at += count
        _check_order(own, name, size)
        streams[name] = Stream(name=name, size=size, extents=own)
    if at != len(extents):
        raise ValueError("there are extents of no stream")
    return streams


def _check_order(extents: Extents, name: str, size: int | None) -> None:
    first = extents["start"] // PAGE_SIZE
    ends = first + extents["pages"]
    if (first[1:] < ends[:-1]).any():
        raise ValueError(f'extents of stream "{name}" overlap or are not in order')
    if size is not None and len(ends) and (int(ends[-1]) - 1) * PAGE_SIZE >= size:
        raise ValueError(f'stream "{name}" has pages beyond its size')
