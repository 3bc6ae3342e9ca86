"""Where the pages of one task come from in a take.

Most are read from its shadow, at leisure. Mappings that a fork does not copy (MADV_DONTFORK,
MADV_WIPEONFORK, private huge pages of hugetlbfs, which a copy-on-write fault takes away from the
shadow) are read while the task is stopped. A task without a shadow is copied whole while criu
holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

from cw_snapshot.snapshot import images, procfs, vm_flags
from cw_snapshot.snapshot.images import Vma
from cw_snapshot.snapshot.memory import ProcessPages, SavedRegion, save_regions
from cw_snapshot.snapshot.shadows import ShadowDiedError
from cw_snapshot.snapshot.spool import CopiedPages, Source
from cw_snapshot.snapshot.tree import Member


class TaskMemory:
    """The memory of one stopped and dumped task.

    :param folder: criu's images.
    :param stopped_only: its mappings that no shadow will have, as known before the stop. Whether
        there are more shows when the shadow is compared with the images.
    """

    def __init__(self, member: Member, folder: Path, stopped_only: Collection[tuple[int, int]]) -> None:
        self.member = member
        self._folder = folder
        self._stopped_only = frozenset(stopped_only)
        self._saved: list[SavedRegion] = []
        self._copied: CopiedPages | None = None

    def read_while_stopped(self) -> None:
        """Read what no shadow will have. All that a take reads of memory in the usual pause."""
        if self._stopped_only:
            self._saved = save_regions(self.member.pid, sorted(self._stopped_only))

    @cached_property
    def mappings(self) -> list[Vma]:
        """All mappings, from criu's image."""
        return images.vmas(self._folder, self.member.ns_pid)

    def _forkable(self) -> list[tuple[int, int]]:
        spans = ((v.start, v.end) for v in self.mappings if v.carried)
        return [span for span in spans if span not in self._stopped_only]

    def copy_while_held(self) -> None:
        """Copy all pages: there is no shadow. The stop is as long as that takes."""
        self._agree_with(procfs.vm_flags(self.member.pid))
        self._copied = CopiedPages(ProcessPages(self.member.pid, self._forkable(), saved=self._saved))

    def _agree_with(self, flags: vm_flags.Flags) -> None:
        vm_flags.put_right(self._folder, self.member.ns_pid, flags, self._stopped_only)

    def source(self, shadow: int, still_valid: Callable[[], bool], release: Callable[[], None]) -> Source:
        """The pages as they were at the stop.

        :param shadow: pid of its shadow; not used for a copied task.
        :raises ShadowDiedError: it is dead already.
        :raises MappingChangedError: the shadow can't stand for the task.
        """
        if self._copied is not None:
            return self._copied
        flags = procfs.vm_flags(shadow)
        if not still_valid():  # a dead one has no mappings, without an error
            raise ShadowDiedError(pid=self.member.pid)
        self._agree_with(flags)
        return ProcessPages(
            shadow, self._forkable(), saved=self._saved, still_valid=still_valid, release=release
        )
