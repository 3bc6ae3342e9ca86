"""Reading and editing CRIU's image files with the protobuf classes that come with criu.

An image is one or two 32-bit magics, then entries of a 32-bit size and that many bytes of
protobuf (criu.org/Images). Only images whose entries carry no extra blob are read here. The
magics are kept as they are, so an edited image stays one of the criu that wrote it.

pycriu's own `images.load` is not used: it turns messages into dictionaries, which is slow, and
its 4.1.1 does not run on protobuf 7.
"""

from __future__ import annotations

import importlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.criu_binary import load_pycriu

_COMMON_MAGIC = 0x54564319
_SERVICE_MAGIC = 0x55105940
_U32 = struct.Struct("<I")

# criu/include/image.h and images/mm.proto, vma.proto.
VMA_VDSO = 1 << 3
VMA_ANON_SHARED = 1 << 8
VMA_ANON_PRIVATE = 1 << 9
VMA_FILE_PRIVATE = 1 << 6
VMA_FILE_SHARED = 1 << 7
VMA_MEMFD = 1 << 14
VMA_VSYSCALL = 1 << 2
VMA_VVAR = 1 << 12
VMA_GUARD = 1 << 16
MAP_PRIVATE = 0x02
MAP_ANONYMOUS = 0x20
MAP_HUGETLB = 0x40000
MAP_GROWSDOWN = 0x100
_MADV_DONTFORK = 10

O_ACCMODE = 0o3
O_APPEND = 0o2000


class ImageDamagedError(CwError):
    """CRIU image {path} cannot be read: {why}.

    Fix: the snapshot was made by another criu, or is damaged; `cw-snapshot verify` tells which.
    """

    exit_code = ExitCode.INTEGRITY


@cache
def message(module: str, name: str) -> Any:
    """A protobuf class of CRIU's images, for example `message("mm", "mm_entry")`."""
    load_pycriu()
    return getattr(importlib.import_module(f"pycriu.images.{module}_pb2"), name)


def load_messages() -> None:
    """Import what is read of the images in a take's pause: the first use of these takes 6 ms of
    processor time, and more where the disk is busy."""
    message("pstree", "pstree_entry")
    message("fdinfo", "file_entry")
    message("remap_file_path", "remap_file_path_entry")


def _header_size(data: bytes, path: Path) -> int:
    if len(data) < _U32.size:
        raise ImageDamagedError(path=path, why="it is empty")
    (magic,) = _U32.unpack_from(data)
    return 2 * _U32.size if magic in (_COMMON_MAGIC, _SERVICE_MAGIC) else _U32.size


def _payloads(data: bytes, path: Path) -> Iterator[bytes]:
    at = _header_size(data, path)
    while at < len(data):
        if at + _U32.size > len(data):
            raise ImageDamagedError(path=path, why="it ends inside an entry")
        (size,) = _U32.unpack_from(data, at)
        at += _U32.size
        if at + size > len(data):
            raise ImageDamagedError(path=path, why="it ends inside an entry")
        yield data[at : at + size]
        at += size


def load(path: Path, module: str, name: str, *, head: str | None = None) -> list[Any]:
    """The entries of an image as messages `name` of `module`.

    `head` names the message type of the first entry where that differs (pagemap images).
    """
    out = []
    for index, payload in enumerate(_payloads(path.read_bytes(), path)):
        entry = message(module, head if head and index == 0 else name)()
        try:
            entry.ParseFromString(payload)
        except Exception as error:  # protobuf's DecodeError has moved between its releases
            raise ImageDamagedError(path=path, why=str(error)) from error
        out.append(entry)
    return out


def store(path: Path, entries: Sequence[Any]) -> None:
    """Replace the entries of an existing image."""
    data = path.read_bytes()
    parts = [data[: _header_size(data, path)]]
    for entry in entries:
        payload = entry.SerializeToString()
        parts += [_U32.pack(len(payload)), payload]
    path.write_bytes(b"".join(parts))


@dataclass(frozen=True, slots=True)
class Vma:
    """One mapping of a process, from its mm image."""

    start: int
    end: int
    prot: int
    flags: int
    status: int
    madv: int
    file_id: int = 0
    """Id of the mapped file in files.img."""
    file_flags: int = 0
    """Open flags of the mapping."""

    @property
    def writes_to_file(self) -> bool:
        """Whether stores through it can change a file that others see."""
        shared_file = self.status & VMA_FILE_SHARED and not self.status & VMA_MEMFD
        return bool(shared_file) and self.file_flags & O_ACCMODE != os.O_RDONLY

    @property
    def carried(self) -> bool:
        """Whether its pages are ours: private, and not one of the kernel's own mappings."""
        return bool(self.flags & MAP_PRIVATE) and not self.status & (VMA_VDSO | VMA_VVAR | VMA_VSYSCALL)

    @property
    def anonymous(self) -> bool:
        """Whether an absent page reads as zeros."""
        return bool(self.status & VMA_ANON_PRIVATE)

    @property
    def hugetlb(self) -> bool:
        return bool(self.flags & MAP_HUGETLB)

    @property
    def dontfork(self) -> bool:
        return bool(self.madv & (1 << _MADV_DONTFORK))


def vmas(folder: Path, ns_pid: int) -> list[Vma]:
    """The mappings of a process, in address order."""
    (mm,) = load(folder / f"mm-{ns_pid}.img", "mm", "mm_entry")
    return [
        Vma(v.start, v.end, v.prot, v.flags, v.status, v.madv, v.shmid, v.fdflags) for v in mappings_of(mm)
    ]


def mappings_of(mm: Any) -> list[Any]:
    """The entries of an mm image that are mappings. Behind them criu 4.2 has the guard regions, as if
    they were mappings too (criu/include/image.h)."""
    return [entry for entry in mm.vmas if not entry.status & VMA_GUARD]


@dataclass(frozen=True, slots=True)
class ImagedTask:
    """One process of the dumped tree, from pstree.img."""

    ns_pid: int
    parent: int
    pgid: int
    sid: int
    threads: tuple[int, ...]


def tasks(folder: Path) -> list[ImagedTask]:
    """The dumped tree, parents before children."""
    entries = load(folder / "pstree.img", "pstree", "pstree_entry")
    return [ImagedTask(e.pid, e.ppid, e.pgid, e.sid, tuple(e.threads)) for e in entries]


def has_memory(folder: Path, ns_pid: int) -> bool:
    """Whether a dumped process has memory at all: zombies have none."""
    return (folder / f"mm-{ns_pid}.img").exists()


def run_id(folder: Path) -> str:
    """What criu called its run when it made the dump; part of the name of its nftables table
    (criu/netfilter.c, nftables_get_table)."""
    (inventory,) = load(folder / "inventory.img", "inventory", "inventory_entry")
    return str(inventory.dump_criu_run_id)
