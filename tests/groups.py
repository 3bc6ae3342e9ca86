"""Control groups for tests, of version 1 or 2, whichever the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engine import eventually

_V2 = Path("/sys/fs/cgroup")


@contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """An empty group of a controller; whoever is in it at the end leaves."""
    parent = _V2 / controller
    if not parent.is_dir():
        parent = _V2
        (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    group = parent / f"cw-test-{os.getpid()}"
    group.mkdir(exist_ok=True)
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        eventually("the group is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def inside(group: Path, command: list[str | Path]) -> list[str | Path]:
    """A command that runs in a group from its first page on."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', *command]


def _file(group: Path, v2: str, v1: str) -> Path:
    return group / v2 if (group / v2).exists() else group / v1


def memory_used(group: Path) -> int:
    return int(_file(group, "memory.current", "memory.usage_in_bytes").read_text())


def limit_memory(group: Path, limit: int) -> None:
    _file(group, "memory.max", "memory.limit_in_bytes").write_text(str(limit))


def oom_kills(group: Path) -> int:
    for line in _file(group, "memory.events", "memory.oom_control").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    raise AssertionError("the kernel counts no kills")
