"""Hypothesis strategies for sparse streams, and a check for code that parses bytes of unknown origin."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from storage_doubles import Pieces, random_pages

from cw_snapshot.storage.errors import IntegrityError
from cw_snapshot.storage.pages import PAGE_SIZE

# A small world of pages, so that chunks repeat: many different, ZERO, one almost zero, one constant.
_DIFFERENT = [random_pages(1, seed) for seed in range(48)]
_ALMOST_ZERO = bytes(1000) + b"\x01" + bytes(PAGE_SIZE - 1001)
_CONSTANT = b"\x3f\x80\x00\x00" * (PAGE_SIZE // 4)

pages = st.one_of(st.sampled_from(_DIFFERENT), st.sampled_from([bytes(PAGE_SIZE), _ALMOST_ZERO, _CONSTANT]))


@st.composite
def pieces(draw: st.DrawFn, max_runs: int = 5, max_pages: int = 40) -> Pieces:
    """A sparse stream: runs of pages with gaps (sometimes of no width) between them."""
    result: Pieces = []
    address = draw(st.integers(0, 1 << 51)) * PAGE_SIZE
    for _ in range(draw(st.integers(0, max_runs))):
        data = b"".join(draw(st.lists(pages, min_size=1, max_size=max_pages)))
        result.append((address, data))
        address += len(data) + draw(st.sampled_from([0, 0, 1, 2, 1000])) * PAGE_SIZE
    return result


def survives(parse: Callable[[bytes], object], data: bytes) -> None:
    """`parse` must take `data` or raise an IntegrityError, and nothing else."""
    try:
        parse(data)
    except IntegrityError as error:
        assert error.message
        assert error.fix


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """`sound` with some bytes changed, cut out, put in, or cut off."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "set", "cut", "insert", "truncate", "word"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 64))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=64))
            case "truncate":
                del data[at:]
            case "word":  # the values that break integer arithmetic
                word = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]))
                data[at : at + 8] = word.to_bytes(8, "little")
    return bytes(data)
