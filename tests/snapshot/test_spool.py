"""Files as sources."""

from __future__ import annotations

import os
from pathlib import Path

from cw_snapshot.snapshot.spool import FileBytes


def test_a_file_is_open_only_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"x" * 5000)
    before = len(os.listdir("/proc/self/fd"))
    sources = [FileBytes(path) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    for source in sources:
        assert source.runs() == [(0, 8192)]
        buffer = bytearray(8192)
        source.read_into(0, memoryview(buffer))
        assert bytes(buffer) == b"x" * 5000 + bytes(3192)
        source.finish()
    FileBytes(path).finish()
    assert len(os.listdir("/proc/self/fd")) == before
