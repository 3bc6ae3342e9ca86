"""Which pages of a process have content of their own: PAGEMAP_SCAN, or the pagemap file before
kernel 6.7.

Source: Documentation/admin-guide/mm/pagemap.rst; the categories are those that criu asks for in
criu/pagemap-cache.c, so that exactly the pages which criu would have written are found.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import numpy.typing as npt

from cw_snapshot.snapshot.procfs import PAGE_SIZE, ProcessGoneError

_PAGEMAP_SCAN = 0xC0606610
_ARG = struct.Struct("<12Q")
_WALK_END_AT = 4
_ENTRY = struct.Struct("<Q")

_IS_FILE = 1 << 2
_IS_PRESENT = 1 << 3
_IS_SWAPPED = 1 << 4
_IS_PFNZERO = 1 << 5
_IS_HUGE = 1 << 6
_IS_GUARD = 1 << 8
"""Since 6.15. Guard regions are reported as swapped and can't be read."""

_REGIONS = 32768
"""Regions asked for in one call, 24 bytes each; criu's number."""

_PM_PRESENT = 1 << 63
_PM_SWAPPED = 1 << 62
_PM_FILE = 1 << 61
_PM_GUARD = 1 << 58
"""Since 6.15, as above."""
_PM_EXCLUSIVE = 1 << 56
_PM_FRAME = (1 << 55) - 1
"""Page frame number of a present page; 0 without CAP_SYS_ADMIN."""
_FALLBACK_PAGES = 1 << 17
"""Pages read from the pagemap file at once, 8 bytes each."""

Entries = npt.NDArray[np.uint64]
"""Of the pagemap file, one a page."""

Runs = list[tuple[int, int]]
"""(start address, bytes), ascending."""


def _ioctl(
    fd: int, start: int, end: int, vector: npt.NDArray[np.uint64], excluded: int, wanted: int
) -> tuple[int, int]:
    """One PAGEMAP_SCAN. Returns the number of regions and where the walk ended.

    The kernel collects 512 regions at a time, and after the last of several such rounds tells the end of
    the one before (fs/proc/task_mmu.c, do_pagemap_scan: walk_end stays set): the regions know better.
    """
    arg = bytearray(
        _ARG.pack(
            _ARG.size,
            0,
            start,
            end,
            0,
            vector.ctypes.data,
            len(vector),
            0,
            excluded,
            excluded,
            wanted,
            wanted,
        )
    )
    count = fcntl.ioctl(fd, _PAGEMAP_SCAN, arg, True)
    last = int(vector[count - 1, 1]) if count else 0
    return count, max(_ARG.unpack(arg)[_WALK_END_AT], last)


def scan_is_switched_off() -> bool:
    """Test switch: we, and criu, find a kernel without PAGEMAP_SCAN, as before 6.7."""
    return bool(os.environ.get("CW_SNAPSHOT_TEST_NO_PAGEMAP_SCAN"))


@cache
def supported_categories() -> int:
    """Categories this kernel knows: 0 without PAGEMAP_SCAN, else the bits used here."""
    if scan_is_switched_off():
        return 0
    vector = np.empty((1, 3), np.uint64)
    page = ctypes.create_string_buffer(2 * PAGE_SIZE)
    start = -(-ctypes.addressof(page) // PAGE_SIZE) * PAGE_SIZE
    known = _IS_FILE | _IS_PRESENT | _IS_SWAPPED | _IS_PFNZERO
    fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for categories in (known | _IS_GUARD, known):
            try:
                _ioctl(fd, start, start + PAGE_SIZE, vector, categories & _IS_GUARD | _IS_FILE, _IS_PRESENT)
                return categories
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTTY):
                    raise
        return 0
    finally:
        os.close(fd)


def scan_finds_guards() -> bool:
    """Whether criu can find guard regions: it knows no other way (criu/mem.c, collect_madv_guards)."""
    return bool(supported_categories() & _IS_GUARD)


@cache
def _zero_frame() -> int:
    """Frame of the page that every untouched but read page of anonymous memory shows; 0 without
    CAP_SYS_ADMIN. (The huge one has the file bit.)"""
    untouched = mmap.mmap(-1, PAGE_SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _ = untouched[0]
    address = ctypes.addressof(ctypes.c_char.from_buffer(untouched))
    with Pagemap(os.getpid()) as pagemap:
        return int(pagemap.frames([(address, PAGE_SIZE)])[0])


def _merged(regions: npt.NDArray[np.uint64]) -> Runs:
    """Join regions that touch."""
    if not len(regions):
        return []
    starts, ends = regions[:, 0], regions[:, 1]
    first = np.ones(len(regions), bool)
    first[1:] = starts[1:] != ends[:-1]
    last = np.roll(first, -1)
    last[-1] = True
    begin, size = starts[first], ends[last] - starts[first]
    return list(zip(begin.tolist(), size.tolist(), strict=True))


def join(runs: Iterable[tuple[int, int]]) -> Runs:
    """Join runs that touch; they must be ascending and disjoint."""
    out: Runs = []
    for start, size in runs:
        if out and out[-1][0] + out[-1][1] == start:
            out[-1] = out[-1][0], out[-1][1] + size
        else:
            out.append((start, size))
    return out


def runs_of(addresses: npt.NDArray[np.uint64]) -> Runs:
    """Runs of single pages, ascending."""
    return _merged(np.stack([addresses, addresses + np.uint64(PAGE_SIZE)], axis=1))


def addresses_of(runs: Runs) -> npt.NDArray[np.uint64]:
    """The address of every page of some runs."""
    if not runs:
        return np.empty(0, np.uint64)
    starts, sizes = np.array(runs, np.uint64).T
    counts = (sizes // np.uint64(PAGE_SIZE)).astype(np.int64)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    index = (np.arange(counts.sum()) - before).astype(np.uint64)
    found: npt.NDArray[np.uint64] = np.repeat(starts, counts) + index * np.uint64(PAGE_SIZE)
    return found


class Pagemap:
    """The pagemap of one process.

    :param use_scan: False reads the pagemap file as on kernels before 6.7.
    """

    def __init__(self, pid: int, *, use_scan: bool = True) -> None:
        self._pid = pid
        try:
            self._fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError) as error:  # ESRCH: a zombie has no memory
            raise ProcessGoneError(pid=pid) from error
        self._categories = supported_categories() if use_scan else 0
        self._vector = np.empty((_REGIONS, 3), np.uint64)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Pagemap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def private_pages(self, start: int, end: int) -> Runs:
        """Runs of pages that a private mapping does not share with its file and that are not
        untouched zero pages. Guard regions are left out."""
        if not self._categories:
            return self._from_file(start, end, _is_private)
        excluded = _IS_FILE | _IS_PFNZERO | (self._categories & _IS_GUARD)
        return self._scan(start, end, excluded, _IS_PRESENT | _IS_SWAPPED)

    def guards(self, start: int, end: int) -> Runs:
        """Guard regions (MADV_GUARD_INSTALL); none where the kernel has no such thing."""
        if self._categories:
            return self._scan(start, end, 0, _IS_GUARD) if self._categories & _IS_GUARD else []
        return self._from_file(start, end, lambda entries: entries & np.uint64(_PM_GUARD) != 0)

    def huge_pages(self, start: int, end: int) -> Runs | None:
        """Runs of huge pages; None where the kernel has no PAGEMAP_SCAN. 0.7 ms per GiB of
        small pages, where smaps_rollup takes 15 to 25."""
        if not self._categories:
            return None
        return self._scan(start, end, 0, _IS_HUGE)

    def own_pages(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """For each page whether it is present and no other process has it (bit 56; since 4.2,
        Documentation/admin-guide/mm/pagemap.rst)."""
        pages = (end - start) // PAGE_SIZE
        entries = np.empty(pages, np.uint64)
        if os.preadv(self._fd, [entries.view(np.uint8).data], start // PAGE_SIZE * 8) < 8 * pages:
            raise ProcessGoneError(pid=self._pid)
        wanted = np.uint64(_PM_PRESENT | _PM_EXCLUSIVE)
        own: npt.NDArray[np.bool_] = (entries & wanted) == wanted
        return own

    def frames(self, runs: Runs) -> npt.NDArray[np.uint64]:
        """Page frame number of every page of some runs; 0 where it has none, as in swap."""
        found = np.empty(sum(size for _, size in runs) // PAGE_SIZE, np.uint64)
        at = 0
        for start, size in runs:
            pages = size // PAGE_SIZE
            into = found[at : at + pages].view(np.uint8).data
            if os.preadv(self._fd, [into], start // PAGE_SIZE * 8) < len(into):
                raise ProcessGoneError(pid=self._pid)
            at += pages
        present = (found & np.uint64(_PM_PRESENT)) != 0
        frames: npt.NDArray[np.uint64] = np.where(present, found & np.uint64(_PM_FRAME), np.uint64(0))
        return frames

    def sampled_frames(self, start: int, end: int, step: int) -> list[int]:
        """Page frame numbers of the private pages whose page number is a multiple of `step`; only
        of those that are present."""
        found = []
        for begin, size in self.private_pages(start, end):
            first = -(begin // PAGE_SIZE // -step) * step
            for page in range(first, (begin + size) // PAGE_SIZE, step):
                (entry,) = _ENTRY.unpack(os.pread(self._fd, 8, page * 8) or bytes(8))
                if entry & _PM_PRESENT and entry & _PM_FRAME:
                    found.append(entry & _PM_FRAME)
        return found

    def _scan(self, start: int, end: int, excluded: int, wanted: int) -> Runs:
        runs: Runs = []
        while start < end:
            try:
                count, start = _ioctl(self._fd, start, end, self._vector, excluded, wanted)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    raise ProcessGoneError(pid=self._pid) from error
                raise
            runs += _merged(self._vector[:count])
        return join(runs)

    def _from_file(self, start: int, end: int, wanted: Callable[[Entries], npt.NDArray[np.bool_]]) -> Runs:
        runs: Runs = []
        while start < end:
            pages = min((end - start) // PAGE_SIZE, _FALLBACK_PAGES)
            data = os.pread(self._fd, pages * 8, start // PAGE_SIZE * 8)
            if len(data) < pages * 8:
                raise ProcessGoneError(pid=self._pid)
            found = np.flatnonzero(wanted(np.frombuffer(data, np.uint64)))
            runs += runs_of(start + found.astype(np.uint64) * np.uint64(PAGE_SIZE))
            start += pages * PAGE_SIZE
        return join(runs)


def _is_private(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries of the pagemap file are pages that :meth:`Pagemap.private_pages` names."""
    present = entries & np.uint64(_PM_PRESENT) != 0
    swapped = entries & np.uint64(_PM_SWAPPED) != 0
    others = entries & np.uint64(_PM_FILE | _PM_GUARD) != 0
    zero = np.uint64(_zero_frame())
    untouched = present & (zero != 0) & (entries & np.uint64(_PM_FRAME) == zero)
    private: npt.NDArray[np.bool_] = (present | swapped) & ~others & ~untouched
    return private
