"""The process tree of a job on one node: who belongs to it, stopping it, letting it go.

Stopping is strictly top-down and going leaf-first, so that no parent in the tree ever runs
while a child is stopped: a shell with job control would report the child as stopped and go on
without it (research: 8 of 8 tries with another order).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.procfs import ProcessGoneError

_POLL = 0.0001
"""Seconds between looks at a task that is about to stop; it takes tens of microseconds."""

SHADOW_COMM = "cw-shadow"
"""Name of a shadow in /proc/PID/comm, set by the shadow maker."""


class TreeGoneError(CwError):
    """The job's root process {pid} has ended.

    Fix: `cw-snapshot ps` shows which jobs run.
    """

    exit_code = ExitCode.NOT_FOUND


class StopTimeoutError(CwError):
    """The job's tasks did not stop within {limit_ms:.0f} ms, each time; the job was let go at once.

    Fix: these tasks were busy in the kernel (state D: disk or vfork) or are being continued
    by somebody else; try again, or look at them with `ps -o pid,stat,wchan`.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a tree."""

    pid: int
    """As we see it."""
    ns_pid: int
    """As it sees itself: the pid in CRIU's images."""
    zombie: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """The members of a tree, parents before children."""

    root: Member
    members: tuple[Member, ...]
    stopped_before: frozenset[int] = frozenset()
    """Pids that were stopped by somebody else; they stay so."""

    @property
    def living(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if not m.zombie)

    @property
    def stopped_by_us(self) -> frozenset[int]:
        """As they see themselves: those that ran before :func:`stop`."""
        return frozenset(m.ns_pid for m in self.living if m.pid not in self.stopped_before)


def _member(pid: int, known: dict[int, int]) -> Member | None:
    try:
        return Member(pid, known.get(pid) or procfs.ns_pid(pid), procfs.has_ended(pid))
    except ProcessGoneError:
        return None


def find(root: int) -> Tree:
    """The tree below `root` as it is now; it may change while we look and afterwards."""
    first = _member(root, {})
    if first is None or first.zombie:
        raise TreeGoneError(pid=root)
    members, level = [first], [first]
    while level:
        level = [m for parent in level for m in _children(parent, {}, {p.pid for p in members})]
        members += level
    return Tree(first, tuple(members))


def _children(parent: Member, known: dict[int, int], seen: set[int]) -> list[Member]:
    if parent.zombie:
        return []
    try:
        pids = procfs.children(parent.pid)
    except ProcessGoneError:
        return []
    found = (_member(pid, known) for pid in pids if pid not in seen)
    return [m for m in found if m]


def _all_stopped(pid: int, left: list[int]) -> bool:
    """Whether none of the threads `left` runs any more; those that are found stopped are taken off."""
    while left:
        if procfs.thread_state(pid, left[-1]) not in "TtZX":
            return False
        left.pop()
    return True


def _threads(pid: int) -> list[int]:
    try:
        return procfs.thread_ids(pid)
    except ProcessGoneError:
        return []


class _Stopping:
    """One try to stop a tree."""

    def __init__(self, before: Tree, limit: timedelta, on_stopped: Callable[[int], None]) -> None:
        self._known = {m.pid: m.ns_pid for m in before.members}
        self._root = before.root
        self._limit = limit
        self._on_stopped = on_stopped
        self._deadline = time.monotonic() + limit.total_seconds()
        self.members: list[Member] = []
        self.signalled: list[Member] = []
        self.stopped_before: set[int] = set()

    def run(self) -> Tree:
        level = [m for m in [_member(self._root.pid, self._known)] if m and not m.zombie]
        if not level:
            raise TreeGoneError(pid=self._root.pid)
        while level:
            self._stop_level(level)
            # A stopped process forks no more, but it may be given orphans of a child that ended
            # just before its turn (subreapers): so every level looks at all parents again.
            seen = {m.pid for m in self.members}
            level = [m for parent in self.members for m in _children(parent, self._known, seen)]
        # One that ended before its signal came is a zombie: its stopped parent can't reap it.
        members = [m for m in (_member(m.pid, self._known) for m in self.members) if m]
        return Tree(members[0], tuple(members), frozenset(self.stopped_before))

    def _stop_level(self, level: list[Member]) -> None:
        self.members += level
        waiting = []
        for member in level:
            if member.zombie:
                continue
            with suppress(ProcessLookupError, ProcessGoneError):
                if procfs.read_stat(member.pid).state == "T":
                    self.stopped_before.add(member.pid)
                    self._on_stopped(member.pid)
                    continue
                self.signalled.append(member)  # first: an interruption in between must let it go
                os.kill(member.pid, signal.SIGSTOP)
                waiting.append(member)
        # Complete: with a signal pending no process makes threads (kernel/fork.c, copy_process).
        left = {m.pid: _threads(m.pid) for m in waiting}
        while waiting := [m for m in waiting if not _all_stopped(m.pid, left[m.pid])]:
            if time.monotonic() > self._deadline:
                raise StopTimeoutError(
                    limit_ms=self._limit.total_seconds() * 1e3,
                    evidence=[_describe_states(m.pid) for m in waiting],
                )
            time.sleep(_POLL)


def _describe_states(pid: int) -> str:
    try:
        stat, states = procfs.read_stat(pid), procfs.thread_states(pid)
    except ProcessGoneError:
        return f"pid {pid} has ended"
    running = [f"thread {tid} is {state}" for tid, state in states.items() if state not in "TtZX"]
    return f"pid {pid} ({stat.comm}): {', '.join(running) or 'now stopped'}"


def root_folder(pid: int) -> Path:
    """The root folder of a process as we reach it: ours when it is the same, which then can be
    used after the process has ended."""
    theirs = procfs.PROC / str(pid) / "root"
    try:
        return Path("/") if theirs.samefile("/") else theirs
    except PermissionError:
        return theirs  # preflight tells what is wrong with such a process
    except (FileNotFoundError, ProcessLookupError) as error:
        with suppress(ProcessGoneError):
            if not procfs.has_ended(pid):
                return theirs  # only its main thread has: preflight tells
        raise TreeGoneError(pid=pid) from error


def stop(before: Tree, limit: timedelta, on_stopped: Callable[[int], None] = lambda _: None) -> Tree:
    """Stop every task below the root of `before`, which is the tree as found earlier.

    :param on_stopped: told of each task that somebody else had stopped, as soon as it is found.

    Returns the tree as it stands stopped. When a task does not stop in time, everything is let
    go again and :class:`StopTimeoutError` is raised; the caller may try once more.
    """
    stopping = _Stopping(before, limit, on_stopped)
    try:
        return stopping.run()
    except BaseException:
        go(stopping.signalled)
        raise


def go(members: Iterable[Member], stopped_before: frozenset[int] = frozenset()) -> None:
    """Continue members, given parents first, from the leaves up; those that had been stopped
    by somebody else stay stopped."""
    for member in reversed(list(members)):
        if not member.zombie and member.pid not in stopped_before:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGCONT)


def kill(members: Iterable[Member]) -> None:
    """SIGKILL every member, parents first so that none restarts a child."""
    for member in members:
        if not member.zombie:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
