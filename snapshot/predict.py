"""Predicting what a take will cost the job, from /proc alone.

The constants are what the benchmark `pause` measured with criu 4.1 on kernel 6.18 (README, "What
it costs"); they scale the parts, the parts come from the job.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cw_snapshot.snapshot import carried_files, procfs
from cw_snapshot.snapshot.pagemap import supported_categories
from cw_snapshot.snapshot.procfs import ProcessGoneError
from cw_snapshot.snapshot.tree import Tree

_BASE_SECONDS = 0.008
"""Stop, freeze and the end of criu."""
_PROCESS_SECONDS = 0.010
"""criu's work on one process without threads."""
_THREAD_SECONDS = 0.0004
_DESCRIPTOR_SECONDS = 0.00005
_PAGE_TABLE_SECONDS_PER_BYTE = 0.017 / (2 << 20)
"""fork copies page tables: 17 ms for the 2 MiB of tables that map 1 GiB of 4 KiB pages."""
_COPY_SECONDS_PER_BYTE = 1 / (1 << 30)
"""criu copies shared memory, and fork copies pinned memory, at about 1 GiB/s; so do we with files
on a tmpfs."""
_MAPPING_SECONDS = 0.000006
"""criu parses, dumps and compares each mapping."""
_ENTRY_SECONDS_PER_BYTE = 0.002 / (1 << 30)
"""Without PAGEMAP_SCAN criu looks at each page of each private mapping, also of those that are only
reserved; the mask makes them absent, and no fewer."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a take of a tree is expected to cost."""

    processes: int
    threads: int
    private_bytes: int
    """Memory that shadows hold, that is read and hashed."""
    shared_bytes: int
    """Shared memory and writable files on a tmpfs, which are copied during the pause."""
    pinned_bytes: int
    """Memory that can't be shared copy-on-write and is copied during the pause."""
    page_table_bytes: int
    pause_seconds: float
    mappings: int = 0

    @property
    def extra_memory_bytes(self) -> int:
        """The most that shadows can cost: the job rewrites everything while they live."""
        return self.private_bytes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "extra_memory_bytes": self.extra_memory_bytes}


def predict(tree: Tree) -> Prediction:
    """Look at a running tree. Processes that end meanwhile are left out."""
    processes = threads = descriptors = private = shared = pinned = tables = maps = looked_at = 0
    files: dict[tuple[int, int], int] = {}
    for member in tree.living:
        try:
            status = procfs.status(member.pid)
            opened = procfs.descriptors(member.pid)
            mappings = procfs.mappings(member.pid)
        except (ProcessGoneError, PermissionError):
            continue
        carried = carried_files.find(member.pid, opened, mappings)
        files |= {file.identity: file.stored_bytes for file in carried}
        # What is mapped of these counts as shared memory too, which criu copies; them it does not.
        beside = sum(file.stored_bytes for file in carried if file.mapped)
        processes += 1
        descriptors += len(opened)
        maps += len(mappings)
        if not supported_categories():
            looked_at += sum(m.end - m.start for m in mappings if m.private)
        threads += int(status["Threads"])
        private += _bytes(status, "RssAnon") + _bytes(status, "VmSwap")
        shared += max(0, _bytes(status, "RssShmem") - beside)
        pinned += _bytes(status, "VmPin")
        tables += _bytes(status, "VmPTE")
    shared += sum(files.values())
    pause = (
        _BASE_SECONDS
        + _PROCESS_SECONDS * processes
        + _THREAD_SECONDS * (threads - processes)
        + _DESCRIPTOR_SECONDS * descriptors
        + _MAPPING_SECONDS * maps
        + _PAGE_TABLE_SECONDS_PER_BYTE * tables
        + _COPY_SECONDS_PER_BYTE * (shared + pinned)
        + _ENTRY_SECONDS_PER_BYTE * looked_at
    )
    return Prediction(processes, threads, private, shared, pinned, tables, round(pause, 4), maps)


def _bytes(status: dict[str, str], field: str) -> int:
    return int(status.get(field, "0 kB").split()[0]) * 1024
