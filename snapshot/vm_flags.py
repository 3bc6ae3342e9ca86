"""The flags of mappings: known before the stop, given to criu, put right from the shadow.

criu needs the VmFlags of /proc/PID/smaps, and the kernel walks all page tables to show them. So
they are read while the job runs and handed to criu as a table (criu_cow_c/vmflags.h). A mapping
may have changed between that look and the stop: the shadow is a copy of the stopped process with
the same flags, and its smaps, read at leisure, are the last word. What can be corrected in the
image is corrected; a change that a shadow can't follow loses the snapshot.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import images, procfs
from cw_snapshot.snapshot.images import Vma

_MAGIC = b"CWVFLG01"
_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<iIQQ104s")
_LONGEST = 103

Flags = Mapping[tuple[int, int], str]
"""VmFlags by (start, end)."""

_MAP_FLAG = {"gd": 0x100, "nr": 0x4000, "ht": 0x40000}
"""uapi/asm-generic/mman.h, uapi/asm-generic/mman-common.h; what criu notes (criu/proc_parse.c)."""
_MADVICE = {"dc": 10, "sr": 2, "rr": 1, "dd": 16, "mg": 12, "hg": 14, "nh": 15, "wf": 18}
"""MADV_ numbers of the flags that criu restores. 4.1 does not note `wf`, but restores all that it finds
(criu/pie/restorer.c)."""
_STOPPED_ONLY = {"dc", "wf", "ht"}
_MUST_AGREE = ("gd", "ht")
"""criu treats such mappings differently while it dumps them."""


class MappingChangedError(CwError):
    """A mapping of the job changed between preflight and the stop in a way that a copy can't
    follow; the snapshot is lost, the job runs on.

    Fix: take again.
    """

    exit_code = ExitCode.LOST


def write_table(path: Path, processes: Mapping[int, Flags]) -> int:
    """Write the table for criu's library; returns a descriptor of it.

    :param processes: flags of each process, by its pid in its own namespace.
    """
    entries = [
        _ENTRY.pack(pid, 0, start, end, text.encode())
        for pid, flags in sorted(processes.items())
        for (start, end), text in sorted(flags.items())
        if len(text) <= _LONGEST
    ]
    path.touch(mode=0o600)
    path.write_bytes(_HEADER.pack(_MAGIC, 1, len(entries)) + b"".join(entries))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class Foresight:
    """What is known of a process's mappings before it is stopped."""

    flags: Flags
    stopped_only: frozenset[tuple[int, int]]
    """Mappings whose pages a fork does not copy, or not for long (hugetlb)."""
    files_written: frozenset[str]
    """Files that it can change through a shared mapping."""


def foresee(pid: int) -> Foresight:
    """Look at a running process. Slow: walks its page tables."""
    flags = procfs.vm_flags(pid)
    stopped_only = set()
    files = set()
    for mapping in procfs.mappings(pid):
        names = set(flags.get((mapping.start, mapping.end), "").split())
        if mapping.private and _STOPPED_ONLY & names:
            stopped_only.add((mapping.start, mapping.end))
        if not mapping.private and "mw" in names and mapping.name.startswith("/"):
            files.add(mapping.name)
    return Foresight(flags, frozenset(stopped_only), frozenset(files))


def put_right(folder: Path, ns_pid: int, shadow: Flags, saved: Collection[tuple[int, int]]) -> None:
    """Make a process's mm image agree with the flags of its shadow.

    :param saved: the mappings whose pages were read while the process was stopped.
    :raises MappingChangedError: for what can't be put right.
    """
    path = folder / f"mm-{ns_pid}.img"
    (mm,) = images.load(path, "mm", "mm_entry")
    changed = False
    mappings = images.mappings_of(mm)
    lost = [
        f"pid {ns_pid} {start:x}-{end:x}: no longer one mapping"
        for start, end in saved
        if any(v.start < end and start < v.end and (v.start, v.end) != (start, end) for v in mappings)
    ]
    for entry in mappings:
        vma = Vma(entry.start, entry.end, entry.prot, entry.flags, entry.status, entry.madv)
        if not vma.carried:
            continue
        # criu moves the start of a stack down by its hidden guard page.
        text = shadow.get((vma.start, vma.end)) or shadow.get((vma.start + 4096, vma.end))
        if text is None and (vma.start, vma.end) in saved:
            continue
        if text is None:
            lost.append(f"pid {ns_pid} {vma.start:x}-{vma.end:x}: the copy lacks it")
            continue
        names = set(text.split())
        if "wf" in names and (vma.start, vma.end) not in saved:
            lost.append(f"pid {ns_pid} {vma.start:x}-{vma.end:x}: wiped in the copy")
        lost += [
            f"pid {ns_pid} {vma.start:x}-{vma.end:x}: {name} differs"
            for name in _MUST_AGREE
            if (name in names) != bool(vma.flags & _MAP_FLAG[name])
        ]
        flags, madv = _agreed(vma, names)
        if (flags, madv) != (vma.flags, vma.madv):
            entry.flags, entry.madv, changed = flags, madv, True
    if lost:
        raise MappingChangedError(evidence=lost)
    if changed:
        images.store(path, [mm])


def _agreed(vma: Vma, names: set[str]) -> tuple[int, int]:
    flags = vma.flags & ~_MAP_FLAG["nr"] | (_MAP_FLAG["nr"] if "nr" in names else 0)
    madv = vma.madv
    for name, number in _MADVICE.items():
        madv = madv | 1 << number if name in names else madv & ~(1 << number)
    return flags, madv
