"""How much memory a process's cgroups still allow (cgroups(7); v1 and v2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cw_snapshot.snapshot import procfs

_FILES = {
    "cgroup2": ("memory.max", "memory.current"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def headroom(pid: int) -> int:
    """Bytes that the process may still allocate: what the machine has available, or less where a
    cgroup above it has a limit. What a cgroup's files have in the page cache counts as used."""
    left = procfs.meminfo()["MemAvailable"]
    for kind, folder in _folders(pid):
        limit, used = (_number(folder / name) for name in _FILES[kind])
        if limit is not None and used is not None:
            left = min(left, max(0, limit - used))
    return left


def _number(path: Path) -> int | None:
    """None without such a file, and where it says `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _folders(pid: int) -> Iterator[tuple[str, Path]]:
    """Each cgroup of a process that can limit its memory, with those above it."""
    lines = []
    with suppress(OSError):
        lines = (procfs.PROC / str(pid) / "cgroup").read_text().splitlines()
    mounts = list(_mounts())
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind, root, mount in mounts:
            if (kind == "cgroup2") != (controllers == "") or (
                controllers and "memory" not in controllers.split(",")
            ):
                continue
            inside = os.path.relpath(path, root)
            if inside.startswith(".."):
                continue
            folder = mount / inside
            while folder != mount.parent:
                yield kind, folder
                folder = folder.parent


def _mounts() -> Iterator[tuple[str, str, Path]]:
    """Kind, root and place of the cgroup file systems that can limit memory (proc_pid_mountinfo(5))."""
    for line in os.fsdecode((procfs.PROC / "self" / "mountinfo").read_bytes()).splitlines():
        fields = line.split(" ")
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield kind, fields[3], Path(fields[4])
