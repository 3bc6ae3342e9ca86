"""Files that live in memory only (on a tmpfs) and that a job can change: the snapshot has their bytes,
as another node can't have them. They are read during the pause; holes are left out.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.images import O_ACCMODE
from cw_snapshot.snapshot.pagemap import Runs
from cw_snapshot.snapshot.procfs import PAGE_SIZE, Descriptor, Mapping

_READ_BYTES = 16 << 20
"""Between two looks at the clock: 10 ms."""
_ZEROS = bytes(1 << 20)


class CarriedBytes:
    """The bytes of a file in memory of ours, without its holes; a source like those of `spool`.

    :param parts: offset, a multiple of the page size, and bytes of each piece, in order.
    """

    def __init__(self, parts: Sequence[tuple[int, bytes]], size: int) -> None:
        self._parts = parts
        self._starts = [start for start, _ in parts]
        self.size = size

    @classmethod
    def read(cls, path: Path, in_time: Callable[[], None] = lambda: None) -> CarriedBytes:
        """Read a file of a stopped job.

        :param in_time: called now and then; raises when it takes too long.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            parts: list[tuple[int, bytes]] = []
            at = 0
            while at < size and (start := _next_data(fd, at)) is not None:
                at = os.lseek(fd, start, os.SEEK_HOLE)
                for offset in range(start, at, _READ_BYTES):
                    in_time()
                    parts.append((offset, os.pread(fd, min(_READ_BYTES, at - offset), offset)))
        finally:
            os.close(fd)
        return cls(parts, size)

    def digest(self) -> str:
        """BLAKE3 of the whole file, holes as zeros."""
        hasher = blake3()
        at = 0
        for start, data in [*self._parts, (self.size, b"")]:
            while at < start:
                zeros = _ZEROS[: start - at]
                hasher.update(zeros)
                at += len(zeros)
            hasher.update(data)
            at += len(data)
        return hasher.hexdigest()

    def runs(self) -> Runs:
        return [(start, -(-len(data) // PAGE_SIZE) * PAGE_SIZE) for start, data in self._parts]

    def read_into(self, start: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            index = bisect_right(self._starts, start + done) - 1
            first, data = self._parts[index]
            part = memoryview(data)[start + done - first :][: len(buffer) - done]
            if not part:  # the end of the last page
                buffer[done:] = bytes(len(buffer) - done)
                return
            buffer[done : done + len(part)] = part
            done += len(part)

    def finish(self) -> None:
        return


def _next_data(fd: int, at: int) -> int | None:
    try:
        return os.lseek(fd, at, os.SEEK_DATA) // PAGE_SIZE * PAGE_SIZE
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole is left
            return None
        raise


def on_tmpfs(path: Path) -> bool:
    """Whether a file's bytes live in memory only."""
    try:
        return path.stat().st_dev in tmpfs_devices(os.getpid())
    except OSError:
        return False


def tmpfs_devices(pid: int) -> set[int]:
    """Device numbers of the tmpfs that a process has mounted."""
    found = set()
    for line in os.fsdecode((procfs.PROC / str(pid) / "mountinfo").read_bytes()).split("\n"):
        fields = line.split(" ")
        if "-" in fields and fields[fields.index("-") + 1] == "tmpfs":
            major, minor = fields[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return found


@dataclass(frozen=True, slots=True)
class InMemory:
    """A linked file on a tmpfs that a process can change."""

    identity: tuple[int, int]
    """Device and inode."""
    where: str
    """`fd 3 -> /dev/shm/x` or `mapping /dev/shm/x`."""
    size: int
    stored_bytes: int
    """What of its size is not holes: what is read."""
    mapped: bool


def find(pid: int, descriptors: Sequence[Descriptor], mappings: Sequence[Mapping]) -> list[InMemory]:
    """The files of a living process that would be carried, each one once."""
    base = procfs.PROC / str(pid)
    found: dict[tuple[int, int], InMemory] = {}
    try:
        devices = tmpfs_devices(pid)
    except OSError:
        return []

    def look(path: Path, where: str, mapped: bool) -> None:
        with suppress(OSError):  # closed or unmapped meanwhile
            seen = path.stat()
            if seen.st_dev in devices and stat.S_ISREG(seen.st_mode) and seen.st_nlink:
                identity = seen.st_dev, seen.st_ino
                made = InMemory(identity, where, seen.st_size, 512 * seen.st_blocks, mapped)
                found.setdefault(identity, made)

    for m in mappings:
        if not m.private and m.inode and m.name.startswith("/") and "w" in m.perms:
            look(base / "map_files" / f"{m.start:x}-{m.end:x}", f"mapping {m.name}", True)
    for d in descriptors:
        if d.target.startswith("/") and not d.target.startswith(("/dev/null", "/proc/")):
            with suppress(OSError, ValueError, IndexError):
                info = (base / "fdinfo" / str(d.fd)).read_text()
                if int(info.partition("flags:")[2].split()[0], 8) & O_ACCMODE:
                    look(base / "fd" / str(d.fd), f"fd {d.fd} -> {d.target}", False)
    return list(found.values())
