from __future__ import annotations

import json
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import extents
from storage_strategies import damaged, survives

from cw_snapshot.storage.chunkids import ids_from_list
from cw_snapshot.storage.errors import (
    ForeignObjectError,
    ManifestDamagedError,
    UnsupportedFormatError,
)
from cw_snapshot.storage.manifest import (
    ZERO,
    Manifest,
    Stream,
    check_stream_name,
    decode_manifest,
    encode_manifest,
    join_zero_extents,
)

OWNER = "ab" * 16
P = 4096


def manifest(streams: list[Stream], chunks: int = 3) -> Manifest:
    ids = ids_from_list([bytes([n]) * 32 for n in range(chunks)])
    return Manifest({"pid": 7, "env": ["a=b"]}, {s.name: s for s in streams}, ids)


SAMPLE = manifest(
    [
        Stream(
            "pages/7",
            None,
            extents((10 * P, 2, 0), (12 * P, 500, ZERO), (1 << 47, 1, 1), ((1 << 64) - P, 1, 1)),
        ),
        Stream("skeleton/core-7.img", 5000, extents((0, 2, 2))),
        Stream("empty", 0, extents()),
    ]
)
SOUND = encode_manifest(SAMPLE, OWNER)
PAYLOAD = zstandard.decompress(SOUND[24:])


def wrap(payload: bytes, size: int | None = None) -> bytes:
    """A manifest object of any payload."""
    header = struct.pack("<8sIIQ", b"CWSNMANI", 1, 0, len(payload) if size is None else size)
    return header + zstandard.compress(payload)


def rewrap(header: dict[str, object], tables: bytes, chunks: int, count: int) -> bytes:
    text = json.dumps(header).encode()
    return wrap(struct.pack("<QQQ", len(text), chunks, count) + text + tables)


def decode(data: bytes) -> Manifest:
    return decode_manifest(data, "manifests/x", OWNER)


def test_round_trip() -> None:
    found = decode(SOUND)
    assert found.metadata == SAMPLE.metadata
    assert list(found.streams) == list(SAMPLE.streams)
    for name, stream in SAMPLE.streams.items():
        assert found.streams[name].size == stream.size
        assert found.streams[name].extents.tolist() == stream.extents.tolist()
    assert found.chunks.tobytes() == SAMPLE.chunks.tobytes()


def test_the_documented_bytes() -> None:
    assert SOUND[:24] == b"CWSNMANI" + struct.pack("<IIQ", 1, 0, len(PAYLOAD))
    header_size, chunks, count = struct.unpack_from("<QQQ", PAYLOAD)
    assert (chunks, count) == (3, 5)
    header = json.loads(PAYLOAD[24 : 24 + header_size])
    assert header["schema"] == "cw-snapshot/manifest/1"
    assert header["repository"] == OWNER
    assert header["streams"][1] == {"name": "skeleton/core-7.img", "size": 5000, "first": 4, "count": 1}
    assert PAYLOAD[24 + header_size :][:96] == bytes(32) + b"\1" * 32 + b"\2" * 32
    assert PAYLOAD[-16:] == struct.pack("<QII", 0, 2, 2)


def test_foreign_and_newer() -> None:
    with pytest.raises(ForeignObjectError, match="manifests/x"):
        decode_manifest(SOUND, "manifests/x", "cd" * 16)
    with pytest.raises(UnsupportedFormatError, match="manifests/x"):
        decode(SOUND[:8] + struct.pack("<I", 2) + SOUND[12:])
    with pytest.raises(UnsupportedFormatError):
        decode(rewrap({"schema": "cw-snapshot/manifest/2"}, b"", 0, 0))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("page", [(10 * P, 0, 0)]),
        ("page", [(10 * P + 1, 1, 0)]),
        ("beyond", [((1 << 64) - P, 2, 0)]),
        ("beyond", [((1 << 64) - P, 0xFFFFFFFF, ZERO)]),
        ("listed", [(0, 1, 3)]),
        ("listed", [(0, 1, ZERO - 1)]),
        ("longer", [(0, 4097, 0)]),
        ("disagree", [(0, 1, 0), (P, 2, 0)]),
        ("order", [(P, 1, 0), (0, 1, 1)]),
        ("order", [(0, 2, 0), (P, 1, 1)]),
        ("order", [(0, 1, 0), (0, 1, 0)]),
    ],
)
def test_extents_that_can_not_be(name: str, rows: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ManifestDamagedError, match=name):
        decode(encode_manifest(manifest([Stream("s", None, extents(*rows))]), OWNER))


@pytest.mark.parametrize(("size", "ok"), [(P + 1, True), (2 * P, True), (P, False), (0, False)])
def test_pages_beyond_the_size(size: int, ok: bool) -> None:
    data = encode_manifest(manifest([Stream("s", size, extents((0, 2, 0)))]), OWNER)
    if ok:
        assert decode(data).streams["s"].size == size
        return
    with pytest.raises(ManifestDamagedError, match="beyond its size"):
        decode(data)


@pytest.mark.parametrize(
    "streams",
    [
        [{"name": "a", "size": None, "first": 0, "count": 1}],  # an extent of nobody
        [{"name": "a", "size": None, "first": 0, "count": 3}],
        [{"name": "a", "size": None, "first": 0, "count": 1 << 62}],
        [
            {"name": "a", "size": None, "first": 1, "count": 1},
            {"name": "b", "size": None, "first": 0, "count": 1},
        ],
        [
            {"name": "a", "size": None, "first": 0, "count": 1},
            {"name": "a", "size": None, "first": 1, "count": 1},
        ],
        [{"name": "../a", "size": None, "first": 0, "count": 2}],
        [{"name": "a", "size": -1, "first": 0, "count": 2}],
        [{"name": "a", "size": 1.5, "first": 0, "count": 2}],
        [7],
        {},
    ],
)
def test_stream_tables_that_can_not_be(streams: object) -> None:
    header = {"schema": "cw-snapshot/manifest/1", "repository": OWNER, "metadata": {}, "streams": streams}
    tables = bytes(32) + extents((0, 1, 0), (P, 1, 0)).tobytes()
    with pytest.raises(ManifestDamagedError):
        decode(rewrap(header, tables, 1, 2))


@pytest.mark.parametrize(
    ("name", "ok"),
    [
        ("a", True), ("pages/7", True), ("files/dev shm/x", True), ("ä", True), ("...", True),
        ("", False), ("/a", False), ("a/", False), ("a//b", False), ("../a", False), ("a/./b", False),
        ("a\nb", False), ("a\0", False), ("x" * 1025, False), ("\ud800", False),
    ],
)  # fmt: skip
def test_stream_names(name: str, ok: bool) -> None:
    if ok:
        check_stream_name(name)
        return
    with pytest.raises(ValueError, match="stream"):
        check_stream_name(name)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, (2 << 30) + 1])
def test_a_claimed_size_is_compared_before_anything_is_allocated(size: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ManifestDamagedError, match="allowed"):
            decode(wrap(PAYLOAD, size))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_bomb() -> None:
    """16 KiB that decompress to 512 MiB: refused by the limit, before they do."""
    bomb = zstandard.ZstdCompressor().compress(bytes(512 << 20))
    data = struct.pack("<8sIIQ", b"CWSNMANI", 1, 0, 512 << 20) + bomb
    assert len(data) < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(ManifestDamagedError, match="allowed"):
            decode_manifest(data, "manifests/x", OWNER, max_payload=256 << 20)
        with pytest.raises(ManifestDamagedError, match="claims"):
            decode_manifest(data[:16] + struct.pack("<Q", 4096) + data[24:], "manifests/x", OWNER)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "counts", [(1 << 63, 0, 0), (0, 1 << 60, 0), (0, 0, (1 << 64) - 1), (1 << 64 - 5,) * 3]
)
def test_counts_that_overflow(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ManifestDamagedError, match="tables"):
        decode(wrap(struct.pack("<QQQ", *counts) + PAYLOAD[24:]))


@given(damaged(SOUND) | st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    survives(decode, data)


@given(damaged(PAYLOAD) | st.binary(max_size=200))
def test_any_payload(payload: bytes) -> None:
    """Past the compression, where the tables are parsed."""
    survives(decode, wrap(payload))


def test_zero_extents_that_touch_are_joined() -> None:
    found = join_zero_extents(
        extents(
            (0, 1, ZERO), (P, 2, ZERO), (3 * P, 1, 0), (4 * P, 1, ZERO), (6 * P, 1, ZERO), (7 * P, 1, ZERO)
        )
    )
    assert found.tolist() == [(0, 3, ZERO), (3 * P, 1, 0), (4 * P, 1, ZERO), (6 * P, 2, ZERO)]
    assert join_zero_extents(extents()).tolist() == []
    assert join_zero_extents(extents((0, 1, 5), (P, 1, 5))).tolist() == [(0, 1, 5), (P, 1, 5)]


def test_joined_zeros_do_not_overflow() -> None:
    most = 0xFFFFFFFF
    rows = [(0, most, ZERO), (most * P, most, ZERO)]
    found = join_zero_extents(extents(*rows))
    assert int(found["pages"].sum(dtype=np.uint64)) == 2 * most


@pytest.mark.parametrize("limit", ["MAX_HEADER_SIZE", "MAX_PAYLOAD_SIZE", "MAX_MANIFEST_SIZE"])
def test_what_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A snapshot that no reader accepts must not come to exist."""
    monkeypatch.setattr(f"cw_snapshot.storage.manifest.{limit}", 100)
    with pytest.raises(ValueError, match="allowed"):
        encode_manifest(SAMPLE, OWNER)


def test_a_header_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cw_snapshot.storage.manifest.MAX_HEADER_SIZE", 100)
    with pytest.raises(ManifestDamagedError, match="header"):
        decode(SOUND)
