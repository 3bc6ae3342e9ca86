from __future__ import annotations

import pytest
from storage_doubles import PAGE_SIZE

from cw_snapshot.storage.memory import BytesSink, BytesSource


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_a_source_pads_its_last_page(size: int) -> None:
    data = bytes(n % 251 + 1 for n in range(size))
    source = BytesSource(data)
    found = b""
    for start, nbytes in source.runs():
        buffer = bytearray(b"\xaa" * nbytes)
        source.read_into(start, memoryview(buffer))
        found += buffer
    source.finish()
    assert found == data + bytes(-size % PAGE_SIZE)


def test_a_source_gives_any_part() -> None:
    source = BytesSource(bytearray(b"x" * 5000))
    buffer = bytearray(PAGE_SIZE)
    source.read_into(PAGE_SIZE, memoryview(buffer))
    assert buffer == b"x" * 904 + bytes(PAGE_SIZE - 904)


def test_a_sink_cuts_its_last_page() -> None:
    sink = BytesSink(5000)
    sink.write(PAGE_SIZE, [memoryview(b"b" * PAGE_SIZE)])
    sink.zero(0, PAGE_SIZE)
    assert sink.value() == bytes(PAGE_SIZE) + b"b" * 904
