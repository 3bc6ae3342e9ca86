"""The pages of a tree after `go`: read from the shadows, what processes share only once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from cw_snapshot.snapshot import family_images, images, procfs
from cw_snapshot.snapshot.cgroups import leave_pids_groups
from cw_snapshot.snapshot.families import Family, TaskPages, agreed, families
from cw_snapshot.snapshot.family_images import FamilyPages
from cw_snapshot.snapshot.memory import ProcessPages
from cw_snapshot.snapshot.memory_watch import MemoryWatch
from cw_snapshot.snapshot.pagemap import Pagemap, addresses_of
from cw_snapshot.snapshot.shadows import ShadowDiedError, Shadows, find_shadows
from cw_snapshot.snapshot.spool import Source
from cw_snapshot.snapshot.task_memory import TaskMemory


@dataclass(frozen=True, slots=True)
class Stream:
    """Something to store: the repository's name for it, its source, the pack it belongs to."""

    name: str
    source: Source
    lane: str
    size: int | None = None
    """Bytes, for files; None for memory."""


class ShadowPages:
    """All pages of a tree whose processes have shadows.

    :param space: inode of the job's pid namespace.
    :param made: pid of the shadow of each process, both inside that namespace.
    :param watch: drops the shadows when memory runs short.
    """

    def __init__(self, space: int, made: Mapping[int, int], ready: timedelta, watch: MemoryWatch) -> None:
        self._shadow = _as_we_see_them(space, made)
        if lost := made.keys() - self._shadow.keys():
            raise ShadowDiedError(pid=min(lost))
        self._shadows = Shadows(list(self._shadow.values()), ready)
        leave_pids_groups(self._shadow.values())
        self._watch = watch
        if self._shadow:
            watch.start(self._drop_all)
        self._users = dict.fromkeys(self._shadow, 1)
        self._lock = threading.Lock()
        self.families: list[Family] = []
        self.extra_memory_bytes = 0
        """What the shadows cost when they were dropped."""

    def streams(self, memory: Mapping[int, TaskMemory], folder: Path) -> list[Stream]:
        """The pages of every task, and of the families, whose images are written to `folder`."""
        sources = {}
        for pid, task in memory.items():
            alive, drop = partial(self._alive, pid), partial(self._drop, pid)
            sources[pid] = task.source(self._shadow.get(pid, 0), alive, drop)
        self.families = families(self._look(sources), {t.ns_pid: t.parent for t in images.tasks(folder)})
        found = [self._family(family, sources, folder) for family in self.families]
        found += [Stream(f"pages/{pid}", source, f"pages-{pid}") for pid, source in sources.items()]
        return found

    def _look(self, sources: Mapping[int, Source]) -> dict[int, TaskPages]:
        """The frames of all pages that a shadow holds."""
        with ExitStack() as stack:
            runs, pagemaps = {}, {}
            for pid, source in sources.items():
                if isinstance(source, ProcessPages):
                    runs[pid] = source.read_from_process()
                    pagemaps[pid] = stack.enter_context(Pagemap(self._shadow[pid]))
            first = {pid: pagemaps[pid].frames(runs[pid]) for pid in runs}
            second = {pid: pagemaps[pid].frames(runs[pid]) for pid in runs}
        return {pid: TaskPages(addresses_of(runs[pid]), agreed(first[pid], second[pid])) for pid in runs}

    def _family(self, family: Family, sources: Mapping[int, Source], folder: Path) -> Stream:
        family_images.write(folder, family)
        for member, addresses in family.members.items():
            source = sources[member]
            assert isinstance(source, ProcessPages)
            source.leave_out(addresses)
        for origin in set(family.origins.tolist()):
            self._users[origin] += 1
        pages = FamilyPages(family, self._shadow, still_valid=self._alive, release=self._drop)
        name = family_images.pages_name(family)
        return Stream(f"{family_images.FOLDER}/{name}", pages, f"family-{family.root}", pages.size)

    def _alive(self, pid: int) -> bool:
        return self._shadows.alive(self._shadow[pid])

    def _drop(self, pid: int) -> None:
        """One stream has been read: after the last one, note what the shadow cost the job, and
        give that back."""
        with self._lock:
            self._users[pid] -= 1
            if self._users[pid]:
                return
        cost = procfs.private_bytes(self._shadow[pid])
        self._shadows.drop(self._shadow[pid])
        with self._lock:
            self.extra_memory_bytes += cost

    def _drop_all(self) -> None:
        """The job needs the memory: what has not been read is lost."""
        for shadow in self._shadow.values():
            self._shadows.drop(shadow)

    def close(self) -> None:
        """Drop all shadows and wait until they are gone."""
        self._watch.close()
        self._shadows.close()


def _as_we_see_them(space: int, made: Mapping[int, int]) -> dict[int, int]:
    """The shadows' pids outside the job's pid namespace. Most are children of its cw-init; where the
    job has a subreaper of its own, or is pid 1, they may be anywhere below it."""
    of = {shadow: pid for pid, shadow in made.items()}
    found = {}
    for shadow in find_shadows():
        with suppress(procfs.ProcessGoneError):
            ns_pid = procfs.ns_pid(shadow)
            if ns_pid in of and procfs.namespace(shadow, "pid") == space:
                found[of[ns_pid]] = shadow
    return found
