"""Family sets: pages that forked processes still share, found by their page frames.

A page that parent and child have at the same address in the same frame has been the same since
the fork. It is read, hashed and stored once, and comes back shared: criu fills it in before it
forks the child again. Poured one by one, such pages would multiply the job's memory (measured: a
parent of 400 MiB with four workers, 431 MiB before and 2074 MiB after).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cw_snapshot.snapshot.pagemap import Runs, runs_of

Numbers = npt.NDArray[np.uint64]

LEAST_PAGES = 64
"""Fewer shared pages between a parent and a child make no family: any two processes share some
by chance of the kernel, and a family costs three small images."""


@dataclass(frozen=True, slots=True)
class TaskPages:
    """The pages of one task."""

    addresses: Numbers
    """Ascending."""
    frames: Numbers
    """Page frame numbers; 0 = not known, such a page is never shared."""


@dataclass(frozen=True, slots=True)
class Family:
    """Processes that share pages, and these pages: one content for each address."""

    root: int
    """The member that is nobody's child here."""
    addresses: Numbers
    """Ascending."""
    origins: npt.NDArray[np.int64]
    """The member from which each page is to be read."""
    members: Mapping[int, Numbers]
    """For each member the addresses at which it has the family's page."""

    def pieces(self) -> list[tuple[int, int, int]]:
        """The pages as (origin, start, bytes), ascending."""
        breaks = np.flatnonzero(np.diff(self.origins)) + 1
        found = []
        for part in np.split(np.arange(len(self.addresses)), breaks):
            origin = int(self.origins[part[0]])
            found += [(origin, start, size) for start, size in runs_of(self.addresses[part])]
        return found

    def runs(self, member: int) -> Runs:
        return runs_of(self.members[member])


def agreed(first: Numbers, second: Numbers) -> Numbers:
    """Frames that two looks at the same pages agree on. Between them all tasks were looked at, so
    that a frame which went from one page to another by migration is not taken for a shared one."""
    found: Numbers = np.where(first == second, first, np.uint64(0))
    return found


def families(pages: Mapping[int, TaskPages], parents: Mapping[int, int]) -> list[Family]:
    """Find the families of a tree.

    :param pages: of every task whose pages can be shared, parents before children.
    :param parents: the parent of each task.
    """
    shared: dict[int, list[npt.NDArray[np.bool_]]] = {pid: [] for pid in pages}
    group = {pid: pid for pid in pages}
    for child in pages:
        parent = parents.get(child, 0)
        if parent not in pages:
            continue
        in_child, in_parent = _common(pages[child], pages[parent])
        if np.count_nonzero(in_child) >= LEAST_PAGES:
            shared[child].append(in_child)
            shared[parent].append(in_parent)
            group[child] = group[parent]
    found = []
    for root in dict.fromkeys(group.values()):
        members = [pid for pid in pages if group[pid] == root and shared[pid]]
        if members:
            found.append(_family(root, [(pid, _chosen(pages[pid], shared[pid])) for pid in members]))
    return found


def _common(child: TaskPages, parent: TaskPages) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which pages of each are the other's too."""
    _, c, p = np.intersect1d(child.addresses, parent.addresses, assume_unique=True, return_indices=True)
    same = (child.frames[c] == parent.frames[p]) & (child.frames[c] != 0)
    in_child, in_parent = np.zeros(len(child.addresses), bool), np.zeros(len(parent.addresses), bool)
    in_child[c[same]] = True
    in_parent[p[same]] = True
    return in_child, in_parent


def _chosen(pages: TaskPages, masks: Sequence[npt.NDArray[np.bool_]]) -> TaskPages:
    mask = np.logical_or.reduce(masks)
    return TaskPages(pages.addresses[mask], pages.frames[mask])


def _family(root: int, candidates: Sequence[tuple[int, TaskPages]]) -> Family:
    """Where branches of a family have different pages at an address, the one with most sharers."""
    address = np.concatenate([pages.addresses for _, pages in candidates])
    frame = np.concatenate([pages.frames for _, pages in candidates])
    pids = np.array([pid for pid, _ in candidates], np.int64)
    member = np.repeat(np.arange(len(candidates)), [len(pages.addresses) for _, pages in candidates])
    order = np.lexsort((member, frame, address))
    address, frame, member = address[order], frame[order], member[order]
    new_page = np.ones(len(address), bool)
    new_page[1:] = (address[1:] != address[:-1]) | (frame[1:] != frame[:-1])
    number = np.cumsum(new_page) - 1  # of each row's page
    sharers = np.bincount(number)
    first = np.flatnonzero(new_page)  # of each page: its first row, of its eldest member
    best = np.lexsort((member[first], -sharers, address[first]))
    _, at = np.unique(address[first][best], return_index=True)
    winners = best[at]
    wins = np.zeros(len(first), bool)
    wins[winners] = True
    listed = wins[number]
    rows = {pid: address[listed & (member == index)] for index, pid in enumerate(pids.tolist())}
    members = {pid: found for pid, found in rows.items() if len(found)}
    return Family(root, address[first][winners], pids[member[first][winners]], members)
