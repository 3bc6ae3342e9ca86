"""How a chunk's bytes are stored: one codec byte per chunk, decided when it is written."""

from __future__ import annotations

from enum import IntEnum

import zstandard

from cw_snapshot.storage.pages import Bytes

ZSTD_LEVEL = 1
"""Higher levels gain nothing on tensors and 9 % on code, at two thirds of the speed."""

WORTH_KEEPING = 7 / 8
"""A compressed chunk is kept if it is at most this share of the raw one. Tensors shrink by 5-10 %
at level 1, and then decompress at 1.2 GB/s a core: a restore would wait for them."""

SAMPLE_BYTES = 8 << 10
"""A chunk whose middle does not shrink is not compressed at all."""


class Codec(IntEnum):
    """The codec byte. 2 and 3 are reserved for byte-shuffled zstd of 2 and 4 byte words."""

    RAW = 0
    ZSTD = 1


class Compressor:
    """Compresses chunks. One per thread: the context inside is reused and not thread-safe."""

    def __init__(self, level: int = ZSTD_LEVEL) -> None:
        self._zstd = zstandard.ZstdCompressor(level=level)

    def compress(self, data: memoryview) -> tuple[Codec, Bytes]:
        """The codec chosen and the bytes to store. RAW gives back `data` itself, not a copy."""
        if len(data) > 4 * SAMPLE_BYTES and not self._shrinks(data):
            return Codec.RAW, data
        packed = self._zstd.compress(data)
        if len(packed) > WORTH_KEEPING * len(data):
            return Codec.RAW, data
        return Codec.ZSTD, packed

    def _shrinks(self, data: memoryview) -> bool:
        """Whether a part of the chunk promises that it is worth compressing. Short parts shrink
        less than the whole: hence the margin."""
        begin = (len(data) - SAMPLE_BYTES) // 2
        packed = self._zstd.compress(data[begin : begin + SAMPLE_BYTES])
        return len(packed) <= (WORTH_KEEPING + 0.06) * SAMPLE_BYTES


class Decompressor:
    """Decompresses chunks. One per thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def decompress(self, frame: memoryview, codec: int, raw_size: int) -> Bytes:
        """The chunk's `raw_size` bytes.

        :raises ValueError: unknown codec, or `frame` is not exactly one frame of that size. No
            more than `raw_size` bytes are ever allocated, whatever the frame claims.
        """
        if codec == Codec.RAW:
            if len(frame) != raw_size:
                raise ValueError(f"{len(frame)} raw bytes are stored for {raw_size}")
            return frame
        if codec != Codec.ZSTD:
            raise ValueError(f"codec {codec} is not known to this version")
        return unzstd(self._zstd, frame, raw_size)


def unzstd(zstd: zstandard.ZstdDecompressor, frame: Bytes, raw_size: int) -> bytes:
    """Decompress one whole zstd frame of exactly `raw_size` bytes, or raise ValueError.

    The size in the frame's header is compared first, because zstandard allocates what it says.
    """
    try:
        claimed = zstandard.frame_content_size(frame)
        if claimed != raw_size:
            raise ValueError(f"the compressed frame claims {claimed} bytes instead of {raw_size}")
        data = zstd.decompress(frame, max_output_size=raw_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"it does not decompress ({error})") from error
    if len(data) != raw_size:
        raise ValueError(f"it decompresses to {len(data)} bytes instead of {raw_size}")
    return data
