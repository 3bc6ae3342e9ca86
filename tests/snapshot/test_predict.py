"""What a pause is expected to be made of."""

from __future__ import annotations

import mmap
import os

import pytest

from cw_snapshot.snapshot import predict, tree

RESERVED = 64 << 30
MAP_NORESERVE = 0x4000


def test_reserved_memory_costs_where_there_are_no_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    def pause() -> float:
        return predict.predict(tree.find(os.getpid())).pause_seconds

    monkeypatch.setattr(predict, "supported_categories", lambda: 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    with_scans, memory = pause(), mmap.mmap(-1, RESERVED, flags, 0)
    try:
        assert pause() < with_scans + 0.05
        monkeypatch.setattr(predict, "supported_categories", lambda: 0)
        assert pause() > with_scans + 0.1
    finally:
        memory.close()
