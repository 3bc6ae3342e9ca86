"""Choosing pids that no restored task needs, and system calls that are entered anew."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.images import ImageDamagedError
from cw_snapshot.snapshot.skeleton import _PID_ROOM, enter_anew, pid_floor


def test_above_the_highest() -> None:
    assert pid_floor({2, 7, 30}, 32768) == 30


def test_in_the_widest_gap_near_the_limit() -> None:
    assert pid_floor({2, 100, 32700}, 32768) == 100


@given(st.sets(st.integers(2, 4194303), min_size=1, max_size=200))
def test_what_follows_is_free(used: set[int]) -> None:
    limit = 4194304
    floor = pid_floor(used, limit)
    room = range(floor + 1, min(floor + 1 + _PID_ROOM, limit))
    widest = max(b - a for a, b in zip([1, *sorted(used)], [*sorted(used), limit], strict=True))
    if widest > _PID_ROOM:
        assert not used & set(room)


def core_image(folder: Path, tid: int, result: int) -> Path:
    """Of a thread behind an epoll_wait."""
    core = images.message("core", "core_entry")()
    core.mtype = 1
    info = core.thread_info
    info.clear_tid_addr = 0
    for field in set(info.gpregs.DESCRIPTOR.fields_by_name) - {"mode"}:
        setattr(info.gpregs, field, 0)
    info.gpregs.ip, info.gpregs.orig_ax, info.gpregs.ax = 0x401002, 232, result
    for field in ("cwd", "swd", "twd", "fop", "rip", "rdp", "mxcsr", "mxcsr_mask"):
        setattr(info.fpregs, field, 0)
    path = folder / f"core-{tid}.img"
    path.write_bytes(struct.pack("<II", 0x54564319, 0x55053847))
    images.store(path, [core])
    return path


def test_entered_anew(tmp_path: Path) -> None:
    interrupted = (1 << 64) - errno.EINTR
    left, anew = (core_image(tmp_path, tid, interrupted) for tid in (7, 8))
    before = left.read_bytes()
    enter_anew(tmp_path, [8])
    (core,) = images.load(anew, "core", "core_entry")
    registers = core.thread_info.gpregs
    assert (registers.ip, registers.ax, registers.orig_ax) == (0x401000, 232, 232)
    assert left.read_bytes() == before


def test_only_what_was_interrupted_is_entered_anew(tmp_path: Path) -> None:
    core_image(tmp_path, 8, 0)
    with pytest.raises(ImageDamagedError):
        enter_anew(tmp_path, [8])
