"""JSON objects that can't be changed unnoticed, and fields taken from JSON of unknown origin.

A *sealed* document is one JSON object in canonical form (ASCII, sorted keys, no spaces) whose
`checksum` field is the BLAKE3 of the rest in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3


def canonical(document: Mapping[str, Any]) -> bytes:
    """The one byte form of a JSON object.

    :raises ValueError: it holds something that JSON does not, NaN included.
    """
    try:
        text = json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a JSON object ({error})") from error
    return text.encode("ascii")


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, or ValueError, whatever `data` is."""
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


def seal(document: Mapping[str, Any]) -> bytes:
    """The sealed form of `document`."""
    rest = {key: value for key, value in document.items() if key != "checksum"}
    return canonical({**rest, "checksum": blake3(canonical(rest)).hexdigest()})


def check_seal(document: Mapping[str, Any], data: bytes) -> None:
    """Raise ValueError unless `data`, which parsed to `document`, is its sealed form."""
    if seal(document) != data:
        raise ValueError("its checksum does not match its content")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Fields:
    """Typed access to the fields of a JSON object; anything unexpected raises ValueError."""

    def __init__(self, document: Any, what: str = "the object") -> None:
        if not isinstance(document, dict):
            raise ValueError(f"{what} is not a JSON object")
        self._document: dict[str, Any] = document

    def _get(self, key: str) -> Any:
        if key not in self._document:
            raise ValueError(f'field "{key}" is missing')
        return self._document[key]

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise ValueError(f'field "{key}" is not a string')
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self._document.get(key) is None else self.text(key)

    def number(self, key: str, *, below: int = 1 << 63) -> int:
        """A whole number from 0 to `below` - 1."""
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
            raise ValueError(f'field "{key}" is not a number from 0 to {below - 1}')
        return value

    def optional_number(self, key: str) -> int | None:
        return None if self._document.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            raise ValueError(f'field "{key}" is not true or false')
        return value

    def hex(self, key: str, nbytes: int) -> bytes:
        """Exactly `nbytes` bytes, in lower-case hexadecimal digits."""
        return unhex(self.text(key), nbytes)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._get(key)
        if not isinstance(value, dict):
            raise ValueError(f'field "{key}" is not an object')
        return value

    def fields(self, key: str) -> Fields:
        return Fields(self.mapping(key))

    def sequence(self, key: str) -> Sequence[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            raise ValueError(f'field "{key}" is not a list')
        return value


def unhex(text: str, nbytes: int) -> bytes:
    """`nbytes` bytes from exactly that many pairs of lower-case hexadecimal digits, or ValueError."""
    if len(text) != 2 * nbytes or any(digit not in "0123456789abcdef" for digit in text):
        raise ValueError(f'"{text[:80]}" is not {nbytes} bytes in hexadecimal')
    return bytes.fromhex(text)
