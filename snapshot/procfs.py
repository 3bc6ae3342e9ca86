"""Typed readings of /proc. Only facts, no decisions.

Every function raises :class:`ProcessGoneError` when the process has ended meanwhile. Formats: proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode

PROC = Path("/proc")
_READ_BYTES = 1 << 14
_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = 4096
"""Bytes; x86_64 has no other base page size."""


class ProcessGoneError(CwError):
    """Process {pid} has ended.

    Fix: `cw-snapshot ps` shows which jobs run.
    """

    exit_code = ExitCode.NOT_FOUND


@contextmanager
def _gone_as(pid: int) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGoneError(pid=pid) from error


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    comm: str
    state: str
    """One letter: R, S, D, T (stopped), t (traced), Z, X, I."""
    ppid: int
    pgrp: int
    session: int
    starttime: int
    """Clock ticks after boot; with the pid it identifies a process for good."""
    cpu_seconds: float = 0.0
    """Processor time of all its threads."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    perms: str
    offset: int
    device: str
    inode: int
    name: str
    """Path, `[heap]`, `[stack]`, `[vdso]`, `[anon:…]` or empty; ` (deleted)` kept."""

    @property
    def private(self) -> bool:
        return self.perms[3] == "p"

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One entry of /proc/PID/fd."""

    fd: int
    target: str
    """The link's text: a path, `socket:[1]`, `pipe:[2]`, `anon_inode:[eventpoll]`."""


def _parse_stat(text: str) -> Stat:
    # The name may contain anything, ")" included: it ends at the last one.
    head, tail = text.rsplit(")", 1)
    pid, comm = head.split(" (", 1)
    f = tail.split()
    return Stat(
        int(pid), comm, f[0], int(f[1]), int(f[2]), int(f[3]), int(f[19]), (int(f[11]) + int(f[12])) / _TICKS
    )


def read_stat(pid: int) -> Stat:
    with _gone_as(pid):
        return _parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))


def thread_ids(pid: int) -> list[int]:
    with _gone_as(pid):
        return sorted(int(t) for t in os.listdir(PROC / str(pid) / "task"))


def _read(path: str) -> bytes:
    """A small file, without more ado: a take reads some for each thread of a stopped job, and most of the
    time was pathlib's."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def thread_state(pid: int, tid: int) -> str:
    """State letter of a thread; X when it has ended."""
    try:
        text = _read(f"/proc/{pid}/task/{tid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return chr(text[text.rindex(b")") + 2])  # the name ends at the last bracket


def thread_states(pid: int) -> dict[int, str]:
    """State letter of every thread of a process."""
    return {tid: thread_state(pid, tid) for tid in thread_ids(pid)}


def has_ended(pid: int) -> bool:
    """Whether a process has ended; one whose main thread has, while others go on, has not.

    :raises ProcessGoneError: it has ended and was reaped.
    """
    return read_stat(pid).state in "ZX" and all(state in "ZX" for state in thread_states(pid).values())


def children(pid: int) -> list[int]:
    """Children of all threads of a process, zombies included."""
    found: list[int] = []
    for tid in thread_ids(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
            found += map(int, _read(f"/proc/{pid}/task/{tid}/children").split())
    return sorted(found)


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status as a mapping from field to text."""
    with _gone_as(pid):
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def status_bytes(status: dict[str, str], *fields: str) -> int:
    """The sum of some sizes of a :func:`status`; those that the kernel does not tell are 0."""
    return 1024 * sum(int(status.get(field, "0 kB").split()[0]) for field in fields)


def ns_pid(pid: int) -> int:
    """The pid that a process has in its own pid namespace."""
    return int(status(pid)["NSpid"].split()[-1])


_MAPS_LINE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+) *(.*)$",
)


def _parse_mapping(line: str) -> Mapping | None:
    match = _MAPS_LINE.match(line)
    if not match:
        return None
    start, end, perms, offset, device, inode, name = match.groups()
    return Mapping(int(start, 16), int(end, 16), perms, int(offset, 16), device, int(inode), name)


def mappings(pid: int) -> list[Mapping]:
    with _gone_as(pid):
        text = os.fsdecode((PROC / str(pid) / "maps").read_bytes())
    return [m for m in map(_parse_mapping, text.split("\n")) if m]


def vm_flags(pid: int) -> dict[tuple[int, int], str]:
    """The two-letter VmFlags of every mapping as one text, keyed by (start, end).

    Reads smaps, which walks the page tables: 10-20 ms per GiB of 4 KiB pages. Never call it
    while the job is stopped.
    """
    with _gone_as(pid):
        text = (PROC / str(pid) / "smaps").read_text(errors="replace")
    flags: dict[tuple[int, int], str] = {}
    current: tuple[int, int] | None = None
    for line in text.splitlines():
        if line.startswith("VmFlags:"):
            if current:
                flags[current] = line.partition(":")[2].strip()
        elif line[0] in "0123456789abcdef" and (mapping := _parse_mapping(line)):
            current = mapping.start, mapping.end
    return flags


def private_bytes(pid: int) -> int:
    """Memory that no other process shares with this one; 0 when it has ended. Walks page tables."""
    return _rolled_up(pid, "Private_")


def anonymous_huge_bytes(pid: int) -> int:
    """Private memory on huge pages; 0 when it has ended. Walks page tables."""
    return _rolled_up(pid, "AnonHugePages")


def _rolled_up(pid: int, fields: str) -> int:
    """The sum of the fields of smaps_rollup whose names begin so, in bytes."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in text.splitlines() if line.startswith(fields))
    return sum(int(words[1]) * 1024 for words in lines)


def descriptors(pid: int) -> list[Descriptor]:
    with _gone_as(pid):
        numbers = sorted(int(n) for n in os.listdir(PROC / str(pid) / "fd"))
    found = []
    for fd in numbers:
        try:
            found.append(Descriptor(fd, os.readlink(f"/proc/{pid}/fd/{fd}")))
        except FileNotFoundError:
            continue  # closed while we looked
    return found


def namespace(pid: int, kind: str) -> int:
    """Inode of a namespace of a process; kind is `pid`, `mnt`, `net`, `ipc`, `user`, …."""
    with _gone_as(pid):
        return (PROC / str(pid) / "ns" / kind).stat().st_ino


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    out = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        number, *unit = value.split()
        out[key] = int(number) * (1024 if unit else 1)
    return out


def pid_max() -> int:
    """The number of pids; they wrap around there."""
    return int((PROC / "sys/kernel/pid_max").read_text())


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()
