"""Reading what the cost of a take depends on, while the job runs.

Cheap: 1 ms per GiB of memory and 3 ms for each process. Nothing here walks page tables for the
kernel's statistics, as smaps does (15-25 ms per GiB of small pages).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cw_snapshot.snapshot import carried_files, procfs
from cw_snapshot.snapshot.pagemap import Pagemap, supported_categories
from cw_snapshot.snapshot.predict import ForkSize, JobFacts
from cw_snapshot.snapshot.procfs import PAGE_SIZE, Descriptor, Mapping, ProcessGoneError
from cw_snapshot.snapshot.socket_peers import tcp_connections
from cw_snapshot.snapshot.tree import Tree

HUGE_BYTES = 2 << 20
"""A huge page of x86_64."""
_SAMPLES = 4096
"""Pages of a tree that are looked at to tell how much its processes share: 2 µs each, and a share
of one half is told within 2 % (the standard error of 4096 draws is 0.8 %)."""
_BUSY_SECONDS = 0.06
"""For so long at least the job's processor time is watched."""
_KERNELS = ("[vdso", "[vvar", "[vsyscall")
_GONE = (ProcessGoneError, PermissionError)

Identity = tuple[int, int]
"""Device and inode."""


@dataclass(slots=True)
class _Sums:
    """What has been found in the processes so far."""

    processes: int = 0
    threads: int = 0
    descriptors: int = 0
    mappings: int = 0
    queues: int = 0
    page_table_bytes: int = 0
    reserved_bytes: int = 0
    private_bytes: int = 0
    """Of each process, what they share included."""
    hugetlb_bytes: int = 0
    forks: list[ForkSize] = field(default_factory=list)
    sockets: set[int] = field(default_factory=set)
    shared: dict[Identity, int] = field(default_factory=dict)
    carried: dict[Identity, int] = field(default_factory=dict)
    anonymous: dict[int, list[Mapping]] = field(default_factory=dict)


def read(tree: Tree) -> JobFacts:
    """Look at a running tree. Processes that end meanwhile are left out."""
    sums = _Sums()
    begun, cpu = time.monotonic(), _cpu_seconds(tree)
    for member in tree.living:
        with suppress(*_GONE):
            _add(sums, member.pid)
    try:
        connections = sum(1 for c in tcp_connections(tree.root.pid) if c.inode in sums.sockets)
    except ProcessGoneError:
        connections = 0
    # Processor time is counted in ticks of 10 ms: over less time it says nothing.
    time.sleep(max(0.0, begun + _BUSY_SECONDS - time.monotonic()))
    passed = time.monotonic() - begun
    return JobFacts(
        processes=sums.processes,
        threads=sums.threads,
        descriptors=sums.descriptors,
        connections=connections,
        mappings=sums.mappings,
        queues=sums.queues,
        forks=tuple(sums.forks),
        private_bytes=round(sums.private_bytes * _unique_share(sums)),
        shared_bytes=sum(size for identity, size in sums.shared.items() if identity not in sums.carried),
        carried_bytes=sum(sums.carried.values()) + sums.hugetlb_bytes,
        reserved_bytes=sums.reserved_bytes,
        page_table_bytes=sums.page_table_bytes,
        busy=min(1.0, max(0.0, (_cpu_seconds(tree) - cpu) / (passed * len(os.sched_getaffinity(0))))),
    )


def _cpu_seconds(tree: Tree) -> float:
    """Processor time of a tree's processes so far."""
    total = 0.0
    for member in tree.living:
        with suppress(ProcessGoneError):
            total += procfs.read_stat(member.pid).cpu_seconds
    return total


def _add(sums: _Sums, pid: int) -> None:
    status = procfs.status(pid)
    descriptors = procfs.descriptors(pid)
    mappings = procfs.mappings(pid)
    anonymous = [m for m in mappings if is_anonymous(m)]
    private = _bytes(status, "RssAnon") + _bytes(status, "VmSwap")
    huge = _huge_bytes(pid, anonymous)
    fork = ForkSize(
        small_pages=max(0, private - huge) // PAGE_SIZE,
        huge_pages=huge // HUGE_BYTES,
        pid=pid,
        # What is pinned of shared memory is not copied, and VmPin does not tell which it is.
        pinned_bytes=min(_bytes(status, "VmPin"), private),
    )
    for identity, size in _copied_by_criu(pid, descriptors, mappings):
        sums.shared[identity] = size
    found = carried_files.find(pid, descriptors, mappings)
    sums.carried |= {file.identity: file.stored_bytes for file in found}
    hugetlb = sum(m.size for m in mappings if m.private and m.name.startswith("/anon_hugepage"))
    sums.hugetlb_bytes += min(hugetlb, _bytes(status, "HugetlbPages"))
    sums.sockets |= {int(d.target[8:-1]) for d in descriptors if d.target.startswith("socket:[")}
    sums.anonymous[pid] = anonymous
    sums.forks.append(fork)
    sums.processes += 1
    sums.threads += int(status.get("Threads", "1"))
    sums.descriptors += len(descriptors)
    sums.mappings += len(mappings)
    sums.queues += sum(d.target.startswith(("pipe:", "socket:")) for d in descriptors)
    sums.page_table_bytes += _bytes(status, "VmPTE")
    if not supported_categories():
        sums.reserved_bytes += sum(m.size for m in mappings if m.private)
    sums.private_bytes += private


def is_anonymous(mapping: Mapping) -> bool:
    """Private memory without a file, which can be on huge pages."""
    return mapping.private and not mapping.inode and not mapping.name.startswith(_KERNELS)


def _bytes(status: dict[str, str], name: str) -> int:
    return int(status.get(name, "0 kB").split()[0]) * 1024


def _huge_bytes(pid: int, anonymous: Sequence[Mapping]) -> int:
    with Pagemap(pid) as pagemap:
        found = 0
        for mapping in anonymous:
            if mapping.size >= HUGE_BYTES:
                runs = pagemap.huge_pages(mapping.start, mapping.end)
                if runs is None:  # before 6.7
                    return procfs.anonymous_huge_bytes(pid)
                found += sum(size for _, size in runs)
        return found


def _copied_by_criu(
    pid: int, descriptors: Sequence[Descriptor], mappings: Sequence[Mapping]
) -> Iterator[tuple[Identity, int]]:
    """Memory that has no name in a file system, mapped or only held open: shared anonymous memory,
    memfds, deleted files. Each with the bytes that it has, holes left out."""
    base = procfs.PROC / str(pid)
    paths = [base / "map_files" / f"{m.start:x}-{m.end:x}" for m in mappings if not m.private and m.inode] + [
        base / "fd" / str(d.fd) for d in descriptors if d.target.endswith(" (deleted)")
    ]
    for path in paths:
        if found := _nameless(path):
            yield found


def _nameless(path: Path) -> tuple[Identity, int] | None:
    try:
        seen = path.stat()
    except OSError:  # closed or unmapped meanwhile
        return None
    if seen.st_nlink or not stat.S_ISREG(seen.st_mode):
        return None
    return (seen.st_dev, seen.st_ino), 512 * seen.st_blocks


def _unique_share(sums: _Sums) -> float:
    """How much of the processes' private memory is there once: those that were forked have pages in
    common, at the same addresses. So every n-th page of the address space is looked at in all of them."""
    if sums.processes < 2 or not sums.private_bytes:
        return 1.0
    step = max(1, sums.private_bytes // PAGE_SIZE // _SAMPLES) | 1  # odd: no beat with sizes
    seen, frames = 0, set[int]()
    for pid, mappings in sums.anonymous.items():
        with suppress(*_GONE), Pagemap(pid) as pagemap:
            for mapping in mappings:
                found = pagemap.sampled_frames(mapping.start, mapping.end, step)
                seen += len(found)
                frames |= set(found)
    return len(frames) / seen if seen else 1.0
