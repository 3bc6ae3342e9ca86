"""Families in CRIU's images, as a parent snapshot of an incremental one.

The folder `family` beside the images holds, for each family, one file of pages and for each member
a pagemap that describes it; the member's own pagemap names those of its pages that are there
(PE_PARENT, criu/include/pagemap.h). criu then restores them before it forks the children, and what
a child has in common with its parent stays shared (criu/mem.c, restore_priv_vma_content). criu
finds the folder by a link named `parent` (criu/include/image.h, CR_PARENT_LINK).

criu shares between mappings that begin and end at the same addresses (criu/mem.c, check_cow_vmas).
A heap that one of them has extended since the fork would not be, so the members' mappings are cut
where those of others end.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.families import Family
from cw_snapshot.snapshot.memory import MemoryUnreadableError
from cw_snapshot.snapshot.pagemap import Runs, runs_of
from cw_snapshot.snapshot.procfs import PAGE_SIZE
from cw_snapshot.snapshot.vm_io import ProcessMemory

FOLDER = "family"
_LINK = "parent"
_PE_PARENT, _PE_PRESENT = 1, 4
_NR_PAGES = 2
"""Field number; its name differs between 4.1 and 4.2."""
_MOST_MAPPINGS = 30_000
"""Half of what vm.max_map_count allows by default. A member that would have more is not cut."""


def pages_name(family: Family) -> str:
    return f"pages-{family.root}.img"


def write(folder: Path, family: Family) -> None:
    """Describe a family in the images of its members, all but the pages themselves."""
    (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
    present = [_entry(start, size, _PE_PRESENT) for start, size in runs_of(family.addresses)]
    head = images.message("pagemap", "pagemap_head")(pages_id=family.root)
    _cut_alike(folder, family)
    for member in family.members:
        own = folder / f"pagemap-{member}.img"
        common = folder / FOLDER / own.name
        shutil.copyfile(own, common)
        common.chmod(0o600)
        images.store(common, [head, *present])
        first, *entries = images.load(own, "pagemap", "pagemap_entry", head="pagemap_head")
        entries += [_entry(start, size, _PE_PARENT) for start, size in family.runs(member)]
        images.store(own, [first, *sorted(entries, key=lambda e: e.vaddr)])


def _cut_alike(folder: Path, family: Family) -> None:
    """Cut the members' mappings with shared pages at each other's ends, in their images."""
    mm = {pid: images.load(folder / f"mm-{pid}.img", "mm", "mm_entry")[0] for pid in family.members}
    cuts = np.unique(
        [end for m in mm.values() for v in m.vmas if _shares(v, family) for end in (v.start, v.end)]
    )
    for pid, entry in mm.items():
        made = [part for v in entry.vmas for part in (_cut(v, cuts) if _shares(v, family) else [v])]
        if len(entry.vmas) < len(made) <= _MOST_MAPPINGS:
            del entry.vmas[:]
            entry.vmas.extend(made)
            images.store(folder / f"mm-{pid}.img", [entry])


def _shares(vma: Any, family: Family) -> bool:
    """Whether a mapping has pages of the family and can be cut."""
    kind = images.VMA_ANON_PRIVATE | images.VMA_FILE_PRIVATE
    whole = images.MAP_HUGETLB | images.MAP_GROWSDOWN
    if not vma.status & kind or vma.flags & whole:
        return False
    first, last = np.searchsorted(family.addresses, np.array([vma.start, vma.end], np.uint64))
    return bool(first < last)


def _cut(vma: Any, cuts: npt.NDArray[np.uint64]) -> list[Any]:
    inside = cuts[(cuts > vma.start) & (cuts < vma.end)].tolist()
    parts = []
    for start, end in pairwise([vma.start, *inside, vma.end]):
        part = type(vma)()
        part.CopyFrom(vma)
        part.start, part.end = start, end
        if vma.status & images.VMA_FILE_PRIVATE:
            part.pgoff = vma.pgoff + start - vma.start
        parts.append(part)
    return parts


def link(folder: Path) -> None:
    """Let criu find the families at a restore."""
    if (folder / FOLDER).is_dir():
        (folder / _LINK).symlink_to(FOLDER)


def _entry(start: int, size: int, flags: int) -> Any:
    made = images.message("pagemap", "pagemap_entry")(vaddr=start, flags=flags)
    setattr(made, made.DESCRIPTOR.fields_by_number[_NR_PAGES].name, size // PAGE_SIZE)
    return made


class FamilyPages:
    """The pages of a family as the bytes of its pages image (a PageSource).

    :param readers: pid to read from, for each origin.
    :param still_valid: asked for each origin after the last read.
    :param release: called for each origin when its pages are no longer needed.
    """

    def __init__(
        self,
        family: Family,
        readers: dict[int, int],
        *,
        still_valid: Callable[[int], bool],
        release: Callable[[int], None],
    ) -> None:
        self._pieces = family.pieces()
        self._offsets = []
        self.size = 0
        for _, _, size in self._pieces:
            self._offsets.append(self.size)
            self.size += size
        self._memory = {o: ProcessMemory(readers[o]) for o in {piece[0] for piece in self._pieces}}
        self._still_valid = still_valid
        self._release = release

    def runs(self) -> Runs:
        return [(0, self.size)]

    def read_into(self, start: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            index = bisect_right(self._offsets, start + done) - 1
            origin, address, size = self._pieces[index]
            skip = start + done - self._offsets[index]
            count = min(size - skip, len(buffer) - done)
            memory = self._memory[origin]
            try:
                memory.read_into(address + skip, buffer[done : done + count])
            except OSError as error:
                raise MemoryUnreadableError(
                    pid=memory.pid, address=address + skip, why=error.strerror
                ) from error
            done += count

    def finish(self) -> None:
        valid = {origin: self._still_valid(origin) for origin in self._memory}
        for origin, memory in self._memory.items():
            memory.close()
            self._release(origin)
        for origin, good in valid.items():
            if not good:
                pid = self._memory[origin].pid
                raise MemoryUnreadableError(pid=pid, address=0, why="its shadow died while it was read")
