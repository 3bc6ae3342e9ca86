"""Whether there is room for what a take adds to a job: memory, tasks, and criu's images on a tmpfs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import cgroups, procfs
from cw_snapshot.snapshot.cgroups import MemoryGroup, PidsGroup
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.memory_watch import reserve
from cw_snapshot.snapshot.predict import JobFacts
from cw_snapshot.snapshot.procfs import ProcessGoneError
from cw_snapshot.snapshot.tree import Tree
from cw_snapshot.snapshot.work_folder import PARENT

_CLONES = 2
"""Tasks that are there at the same time while a shadow is made: the middle and the shadow."""
_CLONE_BYTES = 256 << 10
"""Kernel memory of one clone besides page tables: stack, task, mappings."""
_MIB = 1 << 20

_PROCESS_IMAGE_BYTES = 256 << 10
_THREAD_IMAGE_BYTES = 16 << 10
"""core-TID.img with the extended registers."""
_ENTRY_IMAGE_BYTES = 256
"""A mapping or a descriptor in criu's images."""
_QUEUE_BYTES = 64 << 10
"""What a pipe or a socket may hold (pipe(7): the default capacity)."""
_IMAGE_BASE_BYTES = 8 << 20
"""The journal, the table of flags, criu's log."""


class NoRoomToCopyError(CwError):
    """No shadow could be made, and the pages of the job do not fit into the memory that is left
    ({needed} MiB needed, {available} MiB available); the job runs on.

    Fix: see `take --plan` for why no shadow could be made; raise that limit.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class Needs:
    """What a take of a tree adds, in bytes."""

    processes: int
    rewritable: int
    """Private memory: what the shadows cost when the job rewrites it all."""
    clone: int
    """At once, in the stop, in the job's memory group: page tables, and pinned memory, which a fork copies
    (mm/memory.c, copy_present_page)."""
    images: int
    """On the tmpfs of the work folder: shared memory, unlinked files and the skeleton."""


def needs(facts: JobFacts) -> Needs:
    """What the facts of a running tree come to."""
    return Needs(
        processes=facts.processes,
        rewritable=facts.private_bytes,
        clone=_CLONE_BYTES * facts.processes + facts.page_table_bytes + facts.pinned_bytes,
        images=_IMAGE_BASE_BYTES
        + _PROCESS_IMAGE_BYTES * facts.processes
        + _THREAD_IMAGE_BYTES * facts.threads
        + _ENTRY_IMAGE_BYTES * (facts.descriptors + facts.mappings)
        + _QUEUE_BYTES * facts.queues
        + facts.shared_bytes,
    )


def clone_bytes(tree: Tree) -> int:
    """:attr:`Needs.clone` alone, which is quickly seen."""
    total = 0
    for member in tree.living:
        with suppress(ProcessGoneError):
            total += _CLONE_BYTES + procfs.status_bytes(procfs.status(member.pid), "VmPTE", "VmPin")
    return total


def refuse_copies(pids: Iterable[int]) -> None:
    """Raise :class:`NoRoomToCopyError` when we can't hold a copy of the private memory of some stopped
    processes: the kernel might kill one of them for it."""
    needed = sum(procfs.status_bytes(procfs.status(pid), "RssAnon", "VmSwap") for pid in pids)
    available = min(group.headroom for group in cgroups.memory_of([os.getpid()]))
    if needed > available:
        raise NoRoomToCopyError(needed=needed // _MIB, available=available // _MIB)


def findings(tree: Tree, facts: JobFacts, *, goes_on: bool) -> Iterator[Finding]:
    """Findings about a tree before it is stopped."""
    pids = [member.pid for member in tree.living]
    need = needs(facts)
    yield from about_memory(need, cgroups.memory_of(pids), goes_on=goes_on)
    yield from about_pids(need, cgroups.pids_of(pids))
    yield from about_images(need, tmpfs_room(PARENT), procfs.meminfo()["MemAvailable"])


def about_memory(need: Needs, groups: Sequence[MemoryGroup], *, goes_on: bool) -> Iterator[Finding]:
    """A shadow costs what the job rewrites while it lives: at most its private memory."""
    tight = min(groups, key=lambda group: group.headroom)
    if goes_on and tight.headroom < need.rewritable:
        yield Finding(
            "memory-headroom",
            Severity.WARNING,
            "if the job rewrote all its memory while its pages are read, it would reach its memory limit; "
            "the shadows are dropped before, and the snapshot is lost, the job is not",
            f"{tight}; private memory {need.rewritable // _MIB} MiB",
            "raise the limit, or take with `--stop`",
        )
    if any(group.headroom - reserve(group) < need.clone for group in groups):
        yield Finding(
            "clone-headroom",
            Severity.WARNING,
            "no shadow will be made: its page tables alone could exceed the job's memory limit; the pages "
            "are read during the pause",
            f"{tight}; page tables and pinned memory {need.clone // 1024} KiB",
            "raise the limit",
        )
    for group in groups:
        if goes_on and group.kills_all and group.headroom < need.rewritable:
            yield Finding(
                "oom-group",
                Severity.REFUSAL,
                "memory.oom.group is set: if memory ran out, the kernel would kill the job together with "
                "its shadows",
                f"{group}; private memory {need.rewritable // _MIB} MiB",
                "write 0 to memory.oom.group of the job's control group, raise its limit, or take with "
                "`--stop`",
            )
            return


def about_pids(need: Needs, groups: Sequence[PidsGroup]) -> Iterator[Finding]:
    """Where the clones don't fit the pages are read during the pause."""
    for group in groups:
        if group.limit - group.tasks < _CLONES * need.processes:
            yield Finding(
                "pids-headroom",
                Severity.WARNING,
                "no shadow can be made of some processes; their pages are read during the pause",
                f"{group}; {_CLONES * need.processes} more are needed for a moment",
                "raise pids.max",
            )
            return


def about_images(need: Needs, tmpfs: int | None, available: int) -> Iterator[Finding]:
    """The pause writes to a tmpfs, which must not run full in the middle.

    :param tmpfs: bytes free there; None when it has no limit.
    """
    room = available if tmpfs is None else min(tmpfs, available)
    if room < need.images:
        yield Finding(
            "image-room",
            Severity.REFUSAL,
            "the job's shared memory, unlinked files and criu's images do not fit where they are written "
            "during the pause",
            f"{PARENT}: {need.images // _MIB} MiB needed, {room // _MIB} MiB free",
            f"mount -o remount,size=... {PARENT}, or free memory",
        )


def tmpfs_room(path: Path) -> int | None:
    """Bytes free on a file system; None when it has no limit (size=0 of a tmpfs)."""
    seen = os.statvfs(path)
    return seen.f_bavail * seen.f_frsize if seen.f_blocks else None
