"""How much memory a process's cgroups leave, of both versions of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cw_snapshot.snapshot import cgroup_memory, procfs

AVAILABLE = 1 << 40


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc in which process 7 is in /job/rank, of both kinds of cgroups."""
    found = tmp_path / "proc"
    for pid in ("7", "self"):
        (found / pid).mkdir(parents=True)
    (found / "7" / "cgroup").write_text("4:cpu,cpuacct:/x\n3:memory:/job/rank\n0::/job/rank\n")
    monkeypatch.setattr(procfs, "PROC", found)
    monkeypatch.setattr(procfs, "meminfo", lambda: {"MemAvailable": AVAILABLE})
    return found


def mount(proc: Path, kind: str, root: str, options: str) -> Path:
    place = proc.parent / kind
    (place / "job" / "rank").mkdir(parents=True)
    line = f"30 24 0:26 {root} {place} rw,nosuid shared:4 - {kind} none {options}\n"
    with (proc / "self" / "mountinfo").open("a") as file:
        file.write(line)
    return place


def limit(folder: Path, kind: str, most: str, used: int) -> None:
    names = {"cgroup2": ("memory.max", "memory.current")}
    first, second = names.get(kind, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    (folder / first).write_text(f"{most}\n")
    (folder / second).write_text(f"{used}\n")


@pytest.mark.parametrize(("kind", "options"), [("cgroup2", "rw"), ("cgroup", "rw,memory")])
def test_the_tightest_limit_counts(proc: Path, kind: str, options: str) -> None:
    place = mount(proc, kind, "/", options)
    assert cgroup_memory.headroom(7) == AVAILABLE
    limit(place / "job" / "rank", kind, "max" if kind == "cgroup2" else str(1 << 62), 5)
    assert cgroup_memory.headroom(7) == AVAILABLE
    limit(place / "job", kind, "1000", 400)  # of the cgroup above
    assert cgroup_memory.headroom(7) == 600
    limit(place / "job" / "rank", kind, "300", 200)
    assert cgroup_memory.headroom(7) == 100
    limit(place / "job" / "rank", kind, "300", 500)
    assert cgroup_memory.headroom(7) == 0


def test_other_hierarchies_do_not_count(proc: Path) -> None:
    place = mount(proc, "cgroup", "/", "rw,cpu,cpuacct")
    limit(place / "job", "cgroup", "1000", 400)
    assert cgroup_memory.headroom(7) == AVAILABLE


def test_a_mount_of_a_part(proc: Path) -> None:
    """A container sees its own cgroup as the root of the file system."""
    place = mount(proc, "cgroup2", "/job", "rw")
    (place / "rank").mkdir()
    limit(place / "rank", "cgroup2", "1000", 400)
    assert cgroup_memory.headroom(7) == 600
    (proc / "7" / "cgroup").write_text("0::/elsewhere\n")
    assert cgroup_memory.headroom(7) == AVAILABLE


def test_of_this_process() -> None:
    assert 0 <= cgroup_memory.headroom(os.getpid()) <= procfs.meminfo()["MemTotal"]
