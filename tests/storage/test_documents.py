from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.storage.documents import Fields, canonical, check_seal, parse_object, seal, unhex

documents = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@given(documents)
def test_seal(document: dict[str, object]) -> None:
    data = seal(document)
    parsed = parse_object(data)
    check_seal(parsed, data)
    assert {k: v for k, v in parsed.items() if k != "checksum"} == {
        k: v for k, v in document.items() if k != "checksum"
    }


@given(documents, st.data())
def test_any_flipped_bit_breaks_the_seal(document: dict[str, object], data: st.DataObject) -> None:
    sealed = bytearray(seal(document))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"."):
        check_seal(parse_object(bytes(sealed)), bytes(sealed))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"1", b"{", b'{"a":NaN}', b'{"a":Infinity}', b"\xff\xfe", b"[" * 100_000,
        b'{"a":' * 100_000, b'{"a":' + b"1" * 10_000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(ValueError, match="it is not"):
        parse_object(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes", {1, 2}])
def test_what_json_can_not_hold(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical({"a": value})


def test_fields() -> None:
    fields = Fields(
        {"s": "x", "n": 3, "b": True, "m": {}, "l": [], "none": None, "h": "00ff", "big": 1 << 63}
    )
    assert (fields.text("s"), fields.number("n"), fields.flag("b")) == ("x", 3, True)
    assert (fields.mapping("m"), fields.sequence("l"), fields.hex("h", 2)) == ({}, [], b"\x00\xff")
    assert fields.optional_text("none") is None
    assert fields.optional_number("absent") is None
    for wrong in (
        lambda: fields.text("n"),
        lambda: fields.text("absent"),
        lambda: fields.number("b"),
        lambda: fields.number("big"),
        lambda: fields.number("n", below=3),
        lambda: fields.flag("n"),
        lambda: fields.mapping("l"),
        lambda: fields.sequence("m"),
        lambda: fields.fields("s"),
        lambda: fields.hex("h", 3),
        lambda: fields.optional_text("n"),
        lambda: Fields([]),
    ):
        with pytest.raises(ValueError, match=r"."):
            wrong()


@pytest.mark.parametrize("text", ["", "0", "0g", "0G", "AB", " a", "a\n", "\u0660\u0660"])
def test_unhex_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        unhex(text, 1)
