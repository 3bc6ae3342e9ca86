"""The control groups that limit a process: how much memory and how many tasks are left to it.

Both versions: memory.max and pids.max of version 2 (Documentation/admin-guide/cgroup-v2.rst),
memory.limit_in_bytes and pids.max of version 1 (cgroup-v1/memory.rst, pids.rst). The limit of an outer
group holds for everything in it, so every group up to the root counts. Only facts, no decisions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cw_snapshot.snapshot import procfs

_UNLIMITED = 1 << 62
"""Version 1 writes LONG_MAX rounded down to pages for "no limit"."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a memory limit, or the machine."""

    place: str
    """Its folder, or "the machine"."""
    limit: int
    """Bytes: memory.max, or memory.high where that is lower (above it the kernel slows the job down)."""
    usage: int
    reclaimable: int
    """Bytes of `usage` that are page cache of files: the kernel takes them back before it kills."""
    oom_kills: int
    kills_all: bool
    """memory.oom.group: when memory runs out here, all processes of the job's group are killed."""

    @property
    def headroom(self) -> int:
        """Bytes that can still be used before somebody is killed."""
        return max(0, self.limit - self.usage + min(self.reclaimable, self.usage))

    def __str__(self) -> str:
        return (
            f"{self.place}: limit {self.limit // _MIB} MiB, usage {self.usage // _MIB} MiB, "
            f"headroom {self.headroom // _MIB} MiB"
        )


@dataclass(frozen=True, slots=True)
class PidsGroup:
    """A control group with a limit of tasks."""

    place: str
    limit: int
    tasks: int

    def __str__(self) -> str:
        return f"{self.place}: pids.max {self.limit}, {self.tasks} tasks"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy of control groups."""

    version: int
    controllers: frozenset[str]
    """Of version 1; version 2 tells in each folder."""
    root: str
    """Which group is mounted: "/", or a container's own."""
    mount: Path


def hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The hierarchies in a text like /proc/PID/mountinfo (proc(5))."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            fields = before.split(" ")
            version, controllers = (2, "") if kind == "cgroup2" else (1, options.partition(" ")[2])
            found.append(Hierarchy(version, frozenset(controllers.split(",")), fields[3], Path(fields[4])))
    return found


def group_folders(controller: str, mounted: Iterable[Hierarchy], membership: str) -> list[Path]:
    """The folders of a process's group and of those around it, innermost first; empty where they can't
    be seen from here.

    :param membership: a text like /proc/PID/cgroup.
    """
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, where = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), where)
    # A controller that version 1 has is not in version 2.
    ordered = sorted(mounted, key=lambda h: h.version)
    for hierarchy in ordered:
        path = paths.get(controller if hierarchy.version == 1 else "")
        if path is None or (hierarchy.version == 1 and controller not in hierarchy.controllers):
            continue
        try:
            inner = PurePosixPath(path).relative_to(hierarchy.root)
        except ValueError:
            continue  # of another container
        if ".." in inner.parts:
            continue  # outside of our cgroup namespace
        return [hierarchy.mount / part for part in [inner, *inner.parents]]
    return []


def folders(pids: Iterable[int], controller: str) -> list[Path]:
    """The groups of some processes and those around them, each one once, the innermost first. Processes
    that have ended are left out."""
    mounted = hierarchies((procfs.PROC / "self/mountinfo").read_text())
    found: set[Path] = set()
    for pid in pids:
        with suppress(OSError):
            membership = (procfs.PROC / str(pid) / "cgroup").read_text()
            found.update(group_folders(controller, mounted, membership))
    return sorted(found, key=lambda folder: -len(folder.parts))


def memory_group(folder: Path, *, kills_all: bool = False) -> MemoryGroup | None:
    """What a group's files tell; None when it has no limit, or has been removed."""
    try:
        if (folder / "memory.max").exists():
            limit = min(_number(folder / "memory.max"), _number(folder / "memory.high"))
            usage, cache = _number(folder / "memory.current"), ("inactive_file", "active_file")
            kills = _fields(folder / "memory.events").get("oom_kill", 0)
        else:
            limit, usage = (_number(folder / f"memory.{n}_in_bytes") for n in ("limit", "usage"))
            cache = ("total_inactive_file", "total_active_file")
            kills = _fields(folder / "memory.oom_control").get("oom_kill", 0)
        stat = _fields(folder / "memory.stat")
    except OSError:
        return None
    if limit >= _UNLIMITED:
        return None
    return MemoryGroup(str(folder), limit, usage, sum(stat.get(n, 0) for n in cache), kills, kills_all)


def memory_groups(places: Iterable[Path]) -> list[MemoryGroup]:
    """The groups with a limit of some folders, given inner before outer ones, and the machine."""
    found = []
    kills_all = False
    for folder in places:
        # The kernel kills the outermost group that asks for it, up to where memory ran out
        # (mm/memcontrol.c, mem_cgroup_get_oom_group).
        with suppress(OSError):
            kills_all |= _number(folder / "memory.oom.group") == 1
        if group := memory_group(folder, kills_all=kills_all):
            found.append(group)
    return [*found, machine(kills_all=kills_all)]


def machine(*, kills_all: bool = False) -> MemoryGroup:
    """The machine as if it were a group."""
    info = procfs.meminfo()
    used = info["MemTotal"] - info["MemAvailable"]
    kills = _fields(procfs.PROC / "vmstat").get("oom_kill", 0)
    return MemoryGroup("the machine", info["MemTotal"], used, 0, kills, kills_all)


def memory_of(pids: Iterable[int]) -> list[MemoryGroup]:
    """Everything that limits the memory of some processes."""
    return memory_groups(folders(pids, "memory"))


def pids_of(pids: Iterable[int]) -> list[PidsGroup]:
    """Everything that limits the number of tasks of some processes, but for the user's RLIMIT_NPROC."""
    found = []
    for folder in folders(pids, "pids"):
        with suppress(OSError):
            limit, tasks = _number(folder / "pids.max"), _number(folder / "pids.current")
            if limit < _UNLIMITED:
                found.append(PidsGroup(str(folder), limit, tasks))
    return found


def leave_pids_groups(pids: Iterable[int]) -> None:
    """Move some processes into our own pids group, so that they do not count against a limit of theirs.

    Only where pids have a hierarchy of their own: in version 2 that would move their memory as well, and
    whoever shares memory with a job must die before it when the job's memory runs out.
    """
    ours = folders([os.getpid()], "pids")
    if not ours or not (ours[0] / "tasks").exists():  # a file of version 1
        return
    if ours[0] in folders([os.getpid()], "memory"):
        return
    for pid in pids:
        with suppress(OSError):  # a read-only hierarchy in a container: they count, then
            (ours[0] / "cgroup.procs").write_text(str(pid))


def _number(path: Path) -> int:
    text = path.read_text().strip()
    return _UNLIMITED if text == "max" else int(text)


def _fields(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}
