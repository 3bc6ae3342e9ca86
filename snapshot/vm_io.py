"""Copying between our memory and another process's.

Reading goes through /proc/PID/mem, which ignores the protection of mappings (FOLL_FORCE), and never
through process_vm_readv(2): that pins the pages (mm/process_vm_access.c, FOLL_PIN), and the kernel
gives a process a copy of its own of every copy-on-write page that is to be pinned
(mm/gup.c, gup_must_unshare): reading a shadow would double the job's memory.

Writing goes through process_vm_writev(2), at about twice the rate of /proc/PID/mem, and where the
protection forbids that, in read-only private mappings, through /proc/PID/mem.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence

import numpy as np


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


Buffer = bytes | bytearray | memoryview

_MOST_PARTS = 1024
"""IOV_MAX."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prototype(name: str) -> Callable[..., int]:
    function = getattr(_libc, name)
    vector = ctypes.POINTER(_IoVec)
    function.argtypes = (ctypes.c_int, vector, ctypes.c_ulong, vector, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    found: Callable[..., int] = function
    return found


_writev = _prototype("process_vm_writev")


def _write(pid: int, address: int, parts: Sequence[Buffer]) -> int:
    """Copy `parts` to an address of the process; returns how far it went, -1 for nowhere."""
    local = (_IoVec * len(parts))(*(_IoVec(_address(part), len(part)) for part in parts))
    remote = _IoVec(address, sum(map(len, parts)))
    return _writev(pid, local, len(parts), ctypes.byref(remote), 1, 0)


def _address(data: Buffer) -> int:
    """Where the bytes of a buffer are, read-only ones included."""
    return int(np.frombuffer(data, np.uint8).ctypes.data)


class ProcessMemory:
    """The memory of one process.

    :param pid: as we see it.
    :param writable: open it for writing instead of reading.
    """

    def __init__(self, pid: int, *, writable: bool = False) -> None:
        self.pid = pid
        flags = os.O_WRONLY if writable else os.O_RDONLY
        self._fd = os.open(f"/proc/{pid}/mem", flags | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_into(self, address: int, buffer: memoryview) -> None:
        """Fill `buffer`.

        :raises OSError: it can't be read; ESRCH when the process has died.
        """
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], address + done)
            if count == 0:  # no address space any more
                raise OSError(errno.ESRCH, "the process has died")
            done += count

    def write(self, address: int, parts: Sequence[Buffer]) -> None:
        """Write `parts`, one behind the other: the fast way as far as it goes, the rest through
        /proc/PID/mem.

        :raises OSError: it can't be written.
        """
        for first in range(0, len(parts), _MOST_PARTS):
            group = parts[first : first + _MOST_PARTS]
            done = max(0, _write(self.pid, address, group))
            for part in group:
                if done < len(part):
                    self._force(address + done, memoryview(part)[done:])
                done = max(0, done - len(part))
                address += len(part)

    def _force(self, address: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = os.pwrite(self._fd, data[done:], address + done)
            if count == 0:
                raise OSError(errno.ESRCH, "the process has died")
            done += count
