from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import random_pages, text_pages

from cw_snapshot.storage.codec import Codec, Compressor, Decompressor


@pytest.mark.parametrize(
    ("data", "codec"), [(text_pages(4), Codec.ZSTD), (random_pages(4), Codec.RAW), (bytes(4096), Codec.ZSTD)]
)
def test_round_trip(data: bytes, codec: Codec) -> None:
    chosen, stored = Compressor().compress(memoryview(data))
    assert chosen == codec
    assert len(stored) <= len(data)
    assert bytes(Decompressor().decompress(memoryview(stored), chosen, len(data))) == data


def test_little_saved_is_not_worth_decompressing() -> None:
    data = random_pages(63) + bytes(4096)  # zstd saves 1/64
    assert Compressor().compress(memoryview(data))[0] is Codec.RAW


def test_a_sample_decides_about_large_chunks() -> None:
    """A middle that does not shrink stands for the whole; only speed hangs on the guess."""
    text, noise = text_pages(64), random_pages(16)
    assert Compressor().compress(memoryview(text + noise + text))[0] is Codec.RAW
    assert Compressor().compress(memoryview(noise + text * 4 + noise))[0] is Codec.ZSTD


@pytest.mark.parametrize("codec", [2, 3, 4, 255])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(ValueError, match=f"codec {codec}"):
        Decompressor().decompress(memoryview(b"x"), codec, 1)


def test_sizes_must_fit() -> None:
    frame = zstandard.compress(bytes(8192))
    decompressor = Decompressor()
    with pytest.raises(ValueError, match="claims 8192"):
        decompressor.decompress(memoryview(frame), Codec.ZSTD, 4096)
    with pytest.raises(ValueError, match="raw bytes"):
        decompressor.decompress(memoryview(bytes(10)), Codec.RAW, 4096)
    with pytest.raises(ValueError, match="decompress"):
        decompressor.decompress(memoryview(frame + b"more"), Codec.ZSTD, 8192)
    with pytest.raises(ValueError, match="decompress"):
        decompressor.decompress(memoryview(frame[:-2]), Codec.ZSTD, 8192)


def test_a_bomb_is_not_allocated() -> None:
    """A frame that claims 2^60 bytes is refused by its header alone."""
    bomb = struct.pack("<I", 0xFD2FB528) + b"\xe0" + struct.pack("<Q", 1 << 60) + bytes(16)
    assert zstandard.frame_content_size(bomb) == 1 << 60
    with pytest.raises(ValueError, match="claims"):
        Decompressor().decompress(memoryview(bomb), Codec.ZSTD, 4096)


@given(st.binary(max_size=200), st.integers(0, 1 << 20))
def test_any_bytes(frame: bytes, size: int) -> None:
    try:
        data = Decompressor().decompress(memoryview(frame), Codec.ZSTD, size)
    except ValueError:
        return
    assert len(data) == size
