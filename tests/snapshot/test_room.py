"""Limits of memory and tasks: what their files say, and what follows from it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cw_snapshot.snapshot import cgroups, machine_checks, room
from cw_snapshot.snapshot.cgroups import MemoryGroup, PidsGroup, group_folders, hierarchies, memory_groups
from cw_snapshot.snapshot.findings import Severity
from cw_snapshot.snapshot.memory_watch import killed_since, reserve, wait_seconds
from cw_snapshot.snapshot.room import Needs, NoRoomToCopyError

MIB = 1 << 20
GIB = 1 << 30

V1 = """\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CONTAINER = "30 23 0:26 /box/one /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "membership", "expected"),
    [
        (V1, "4:memory:/a/b\n0::/x\n", ["memory/a/b", "memory/a", "memory"]),
        (V2, "0::/slurm/job_7\n", ["slurm/job_7", "slurm", "."]),
        (CONTAINER, "0::/box/one/job\n", ["job", "."]),
        (CONTAINER, "0::/box/two\n", []),
        (V2, "0::/../outside\n", []),
        ("", "0::/a\n", []),
    ],
)
def test_where_the_groups_are(mountinfo: str, membership: str, expected: list[str]) -> None:
    found = group_folders("memory", hierarchies(mountinfo), membership)
    assert found == [Path("/sys/fs/cgroup") / name for name in expected]


def v2_group(folder: Path, limit: str, *, high: str = "max", oom_group: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": str(700 * MIB),
        "memory.stat": f"anon 1\ninactive_file {50 * MIB}\nactive_file {50 * MIB}\n",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "memory.oom.group": str(oom_group),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_version_2(tmp_path: Path) -> None:
    inner = v2_group(tmp_path / "outer/inner", "max", oom_group=1)
    outer = v2_group(tmp_path / "outer", str(GIB))
    (group, machine) = memory_groups([inner, outer])
    assert (group.place, group.limit, group.usage) == (str(outer), GIB, 700 * MIB)
    assert group.headroom == 424 * MIB, "page cache counts as free"
    assert (group.oom_kills, group.kills_all, machine.kills_all) == (2, True, True)
    v2_group(inner, str(GIB), high=str(800 * MIB))
    assert memory_groups([inner, outer])[0].limit == 800 * MIB, "the kernel slows down above memory.high"


def test_version_1(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text(str(GIB))
    (tmp_path / "memory.usage_in_bytes").write_text(str(700 * MIB))
    (tmp_path / "memory.stat").write_text(f"total_inactive_file {MIB}\ntotal_active_file {MIB}\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    group = memory_groups([tmp_path])[0]
    assert (group.headroom, group.oom_kills, group.kills_all) == (326 * MIB, 5, False)
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert [g.place for g in memory_groups([tmp_path, tmp_path / "gone"])] == ["the machine"]


NEED = Needs(processes=2, rewritable=300 * MIB, clone=2 * MIB, images=60 * MIB)
GROUP = MemoryGroup("/job", GIB, 600 * MIB, 0, 0, False)


@pytest.mark.parametrize(
    ("group", "goes_on", "expected"),
    [
        (GROUP, True, []),
        (replace(GROUP, usage=800 * MIB), True, ["memory-headroom"]),
        (replace(GROUP, usage=800 * MIB), False, []),
        (replace(GROUP, usage=800 * MIB, kills_all=True), True, ["memory-headroom", "oom-group"]),
        (replace(GROUP, usage=800 * MIB, kills_all=True), False, []),
        (replace(GROUP, kills_all=True), True, []),
        (replace(GROUP, usage=GIB - 3 * MIB), False, ["clone-headroom"]),
    ],
)
def test_memory(group: MemoryGroup, goes_on: bool, expected: list[str]) -> None:
    found = list(room.about_memory(NEED, [group], goes_on=goes_on))
    assert [f.code for f in found] == expected
    for finding in found:
        assert (finding.severity is Severity.REFUSAL) == (finding.code == "oom-group")
        assert "/job: limit 1024 MiB" in finding.evidence


def test_tasks() -> None:
    assert list(room.about_pids(NEED, [PidsGroup("/job", 10, 6)])) == []
    (finding,) = room.about_pids(NEED, [PidsGroup("/job", 10, 7)])
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(("tmpfs", "available"), [(59 * MIB, GIB), (GIB, 59 * MIB), (None, 59 * MIB)])
def test_images(tmpfs: int | None, available: int) -> None:
    (finding,) = room.about_images(NEED, tmpfs, available)
    assert "60 MiB needed, 59 MiB free" in finding.evidence
    assert list(room.about_images(NEED, GIB, GIB)) == list(room.about_images(NEED, None, GIB)) == []


def test_copies_that_do_not_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "memory_of", lambda pids: [replace(GROUP, limit=GROUP.usage)])
    with pytest.raises(NoRoomToCopyError, match="0 MiB available"):
        room.refuse_copies([os.getpid()])


def test_when_shadows_are_dropped() -> None:
    assert reserve(GROUP) == 32 * MIB
    assert reserve(replace(GROUP, limit=200 * MIB, usage=100 * MIB)) == 16 * MIB
    assert reserve(replace(GROUP, usage=GIB - 10 * MIB)) == 5 * MIB, "a job near its limit may stay there"
    assert wait_seconds(64 * GIB) == 0.25
    assert wait_seconds(MIB) == 0.005
    assert 0.005 < wait_seconds(GIB) < 0.25


def test_kills_are_told_apart() -> None:
    assert killed_since([GROUP], [GROUP]) == []
    assert killed_since([], [replace(GROUP, oom_kills=4)]) == [], "what was before is not known"
    (line,) = killed_since([GROUP], [replace(GROUP, oom_kills=1)])
    assert line.startswith("/job: ")
    assert line.endswith("1 killed")


def test_forced_writes_that_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.check_forced_writes().severity is Severity.OK
    tried = []

    def refuse(fd: int, data: bytes, at: int) -> int:
        tried.append(data)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", refuse)
    finding = machine_checks.check_forced_writes()
    assert tried
    assert finding.severity is Severity.REFUSAL
    assert "proc_mem.force_override" in finding.fix
