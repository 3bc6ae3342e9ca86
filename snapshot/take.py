"""Taking one tree: from the open criu session to shadows whose pages can be read at leisure.

The order keeps the pause short and the snapshot of one instant:

    open      everything slow that may happen while the job runs
    stop      SIGSTOP, top-down
    skeleton  criu dumps all but the private pages and waits in post-dump
    shadow    criu's exit hook forks a shadow of every process, before criu lets go
    go        SIGCONT, leaf-first: the pause is over
    streams   what the repository has to store
    end       shadows and work files are removed

`abort` undoes everything from any point before `go`. No phase blocks longer than its limit.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import describe, file_evidence, images, preflight, procfs, room, skeleton, vm_flags
from cw_snapshot.snapshot import tree as trees
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.criu_session import Callback, CriuDiedError, CriuSession, CriuTimeoutError
from cw_snapshot.snapshot.dump_options import LOG_LEVEL
from cw_snapshot.snapshot.dump_session import start_dump
from cw_snapshot.snapshot.entering import entrance
from cw_snapshot.snapshot.file_evidence import StopEvidence
from cw_snapshot.snapshot.findings import Finding
from cw_snapshot.snapshot.guard import Guard, NoGuardError, put_right, refuse_overlap
from cw_snapshot.snapshot.image_streams import image_streams
from cw_snapshot.snapshot.journal import Fault, Journal, PluginStats, State
from cw_snapshot.snapshot.memory_watch import MemoryWatch
from cw_snapshot.snapshot.phases import Limits, PauseTimes
from cw_snapshot.snapshot.predict import JobFacts
from cw_snapshot.snapshot.shadow_pages import ShadowPages, Stream
from cw_snapshot.snapshot.task_memory import TaskMemory
from cw_snapshot.snapshot.tree import Tree
from cw_snapshot.snapshot.vm_flags import Foresight
from cw_snapshot.snapshot.work_folder import WorkFolder, entry_lock

_SPARE_ROOM = 1024
"""Processes that may come between preflight and the stop."""


class TreeChangedError(CwError):
    """The dumped tree is not the one that was stopped; the job runs on.

    Fix: take again.
    """

    exit_code = ExitCode.ABORTED


class ShadowMakerFailedError(CwError):
    """The shadow maker had to leave a task of the job changed; it was put back from the journal.

    Fix: take again.
    """

    exit_code = ExitCode.ABORTED


class NodeTake:
    """One take of one tree.

    :param tree: the tree as found; it may still change.
    :param name: of this take, unique on the node; names its work folder.
    :param log_level: of criu.
    :param guard_log: file in which the guard tells what it did, if it has to.
    :param fault: test switch for the shadow maker.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        criu: Criu,
        name: str,
        limits: Limits,
        guard_log: Path = Path(os.devnull),
        log_level: int = LOG_LEVEL,
        fault: Fault | None = None,
    ) -> None:
        self.tree = tree
        self._criu = criu
        self._name = name
        self._limits = limits
        self._guard_log = guard_log
        self._log_level = log_level
        self._fault = fault
        self._root_dir = trees.root_folder(tree.root.pid)
        self._space = 0
        self._foresight: dict[int, Foresight] = {}
        self._work: WorkFolder | None = None
        self._session: CriuSession | None = None
        self._journal: Journal | None = None
        self._hold: socket.socket | None = None
        self._pages: ShadowPages | None = None
        self._memory: dict[int, TaskMemory] = {}
        self._evidence = StopEvidence([], {})
        self._processes: list[dict[str, Any]] = []
        self._threads: list[tuple[int, int]] = []
        self._root_facts: describe.RootFacts | None = None
        self._stopped = False
        self._guard: Guard | None = None
        self._watch: MemoryWatch | None = None
        self._to_repair = False
        self.times = PauseTimes()
        self.without_shadow: list[str] = []
        """Processes whose pages were read during the stop, and why."""

    @property
    def _images(self) -> Path:
        assert self._work is not None, "open() comes first"
        return self._work.path / "images"

    @property
    def log(self) -> Path | None:
        """criu's log, between :meth:`open` and :meth:`end`."""
        return self._images / "dump.log" if self._work is not None else None

    # -- before the pause ---------------------------------------------------------------

    def preflight(self, job: JobFacts) -> list[Finding]:
        """Findings about the job; nothing is changed.

        :param job: its size, as a prediction takes it.
        """
        goes_on = self._limits.pause is not None
        facts = preflight.gather(self.tree)
        return preflight.inspect(self.tree, facts, self._criu, job, goes_on=goes_on)

    def open(self) -> None:
        """Start criu and hold it at pre-dump; look at what is slow to look at."""
        images.load_messages()
        with entry_lock():
            refuse_overlap(self.tree)
            self._work = work = WorkFolder(self._name)
            self._guard = Guard(work, "take", os.getpid(), give_up=self._limits.give_up, log=self._guard_log)
            self._space = procfs.namespace(self.tree.root.pid, "pid")
            self._guard.root(self.tree.root.pid, self._space)
        self._images.mkdir(mode=0o700)
        for member in self.tree.living:
            with suppress(procfs.ProcessGoneError):  # jobs have short-lived children
                self._foresight[member.ns_pid] = vm_flags.foresee(member.pid)
                self._processes.append(describe.process(member))
        self._root_facts = describe.root_facts(self.tree.root)
        self._watch = MemoryWatch(member.pid for member in self.tree.living)
        way = entrance(self.tree.root.pid)
        if way.as_user:
            # The folder stays ours: a guard trusts what is in it. The user's criu passes through.
            work.path.chmod(0o711)
            os.chown(self._images, way.uid, way.gid)
        room = 2 * len(self.tree.members) + _SPARE_ROOM
        self._journal = Journal(work.path / "journal", room, hold=self._limits.hold, fault=self._fault)
        flags = {pid: seen.flags for pid, seen in self._foresight.items()}
        flags_fd = vm_flags.write_table(work.path / "vmflags", flags)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hold = ours
        try:
            self._session = start_dump(
                self.tree.root,
                self._criu,
                way,
                self._images,
                journal=self._journal.fd,
                flags=flags_fd,
                hold=theirs,
                log_level=self._log_level,
                started=self._guard.criu,
            )
            self._session.until("pre-dump", self._limits.open)
        finally:
            theirs.close()
            os.close(flags_fd)

    # -- the pause ----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop every task; a tree that does not stop in time is let go and tried again."""
        guard = self._guard
        if guard is None or not guard.alive():
            raise NoGuardError(why="it has ended")
        if self._limits.pause is not None:
            guard.deadline(self._limits.pause + 2 * self._limits.give_up)
        for attempt in range(self._limits.stop_tries):
            self.times = PauseTimes(begin=time.monotonic())
            try:
                self.tree = trees.stop(self.tree, self._limits.stop, guard.stopped_before)
            except trees.StopTimeoutError:
                if attempt + 1 == self._limits.stop_tries:
                    raise
                time.sleep(self._limits.stop.total_seconds())
                continue
            self._stopped = True
            self.times.mark("stopped")
            return

    def skeleton(self) -> None:
        """Let criu dump; it then waits in post-dump, and what only a stopped job can tell has
        been read."""
        session = self._running_session
        session.answer(True)
        session.until("query-ext-files", self._left(self._limits.skeleton))
        self.times.mark("frozen")
        session.answer(True)
        session.until("post-dump", self._left(self._limits.skeleton))
        self.times.mark("dumped")
        self._check_tasks()
        self._read_while_stopped()
        self.times.mark("read")

    def _left(self, limit: timedelta) -> timedelta:
        """What is left of the pause, at most `limit`."""
        if self._limits.pause is None:
            return limit
        passed = timedelta(seconds=time.monotonic() - self.times.begin)
        return min(limit, max(self._limits.pause - passed, timedelta()))

    @property
    def _running_session(self) -> CriuSession:
        assert self._session is not None, "open() comes first"
        return self._session

    def _check_tasks(self) -> None:
        tasks = images.tasks(self._images)
        dumped, stopped = {t.ns_pid for t in tasks}, {m.ns_pid for m in self.tree.members}
        if dumped != stopped:
            raise TreeChangedError(evidence=[f"stopped: {sorted(stopped)}", f"dumped: {sorted(dumped)}"])
        ours = self.tree.stopped_by_us
        self._threads = [(t.ns_pid, tid) for t in tasks if t.ns_pid in ours for tid in t.threads]

    def _read_while_stopped(self) -> None:
        for member in self.tree.living:
            foresight = self._foresight.get(member.ns_pid)
            stopped_only = foresight.stopped_only if foresight else frozenset()
            memory = TaskMemory(member, self._images, stopped_only)
            memory.read_while_stopped()
            self._memory[member.ns_pid] = memory
        mapped = {path for seen in self._foresight.values() for path in seen.files_written}
        found = file_evidence.records(self._images)
        self._evidence = file_evidence.at_stop(
            found, self._root_dir, mapped, lambda: self._left(timedelta.max)
        )

    def shadow(self) -> None:
        """Answer post-dump: criu's exit hook makes the shadows, then criu is done. Where a shadow
        can't be made, the pages are copied while criu still holds the task."""
        journal, hold, session = self._journal, self._hold, self._running_session
        assert journal is not None and hold is not None and self._watch is not None
        # A clone that does not fit would have the kernel kill the job: no shadow dies first yet.
        fits = self._watch.spare() >= room.clone_bytes(self.tree)
        refuse = 0 if fits else errno.ENOMEM
        journal.make_shadows_of([m.ns_pid for m in self.tree.living], self._threads, refuse=refuse)
        session.answer(True)
        sources: list[socket.socket | CriuSession] = [hold, session]
        while True:
            limit = self._left(self._limits.shadow)
            ready, _, _ = select.select(sources, [], [], limit.total_seconds())
            if not ready:
                raise CriuTimeoutError(stage="the shadows", seconds=limit.total_seconds())
            if hold in ready:
                if hold.recv(1) == b"H":
                    self._copy_held(journal)
                    hold.send(b"G")
                else:
                    sources.remove(hold)
                continue
            event = session.next("the shadows", limit)
            if not isinstance(event, Callback):
                break
            session.answer(True)
        if not event.success:
            raise session.failure(event)
        self.times.mark("shadowed")
        dirty = [f"pid {e.pid}: {e.reason}" for e in journal.entries() if e.state is State.DIRTY]
        if dirty:
            self._to_repair = True
            raise ShadowMakerFailedError(evidence=dirty)

    def _copy_held(self, journal: Journal) -> None:
        """Copy the pages of every process that has no shadow, while criu holds it."""
        failed = [entry for entry in journal.entries() if entry.state is State.FAILED]
        room.refuse_copies(m.pid for m in self.tree.living if m.ns_pid in {e.pid for e in failed})
        for entry in failed:
            self._memory[entry.pid].copy_while_held()
            self.without_shadow.append(f"pid {entry.pid}: {entry.reason}")

    @property
    def plugin_stats(self) -> PluginStats:
        """What the library inside criu did; until :meth:`end`."""
        assert self._journal is not None
        return self._journal.stats

    def go(self) -> None:
        """Let the job go on: the pause is over."""
        trees.go(self.tree.members, self.tree.stopped_before)
        self.times.mark("went")
        self._stopped = False
        if self._guard is not None:
            self._guard.went()

    # -- after the pause ----------------------------------------------------------------

    def streams(self) -> list[Stream]:
        """Everything the repository has to store. Sources of memory are valid until :meth:`end`."""
        assert self._journal is not None
        made = {e.pid: e.shadow for e in self._journal.entries() if e.state is State.SHADOWED}
        assert self._watch is not None
        self._pages = ShadowPages(self._space, made, self._limits.open, self._watch)
        pages = self._pages.streams(self._memory, self._images)
        skeleton.enter_anew(self._images, self._journal.entered_anew())
        return pages + image_streams(self._images, self._evidence.carried)

    def lost_to(self, error: Exception) -> CwError | None:
        """What has destroyed a shadow, where an error after `go` may come from that; else None."""
        return self._watch.cause(error) if self._watch else None

    @property
    def extra_memory_bytes(self) -> int:
        """What the shadows cost when they were dropped."""
        return self._pages.extra_memory_bytes if self._pages else 0

    def metadata(self) -> dict[str, Any]:
        """The manifest's metadata; digests what could wait for the job to go on."""
        written = {v.file_id for m in self._memory.values() for v in m.mappings if v.writes_to_file}
        files = file_evidence.after_go(self._evidence, self._root_dir, written)
        assert self._root_facts is not None and self._pages is not None
        return describe.metadata(
            self._images,
            self.tree,
            self._criu,
            self._processes,
            files,
            self._root_facts,
            self._pages.families,
        )

    def end(self) -> None:
        """Remove the shadows and the work files; the job is not touched."""
        self._close()
        if self._work is not None:
            self._work.remove()
            self._work = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def abort(self) -> None:
        """Give up before or after `go`: the job runs on, nothing of the take is left."""
        try:
            if self._session is not None:
                self._give_up(self._session)
        finally:
            # Shadows that no keeper has yet would stay.
            self._to_repair |= self._pages is None and self._shadows_exist()
            try:
                if self._to_repair and self._work is not None:
                    put_right(self._work.path)
            finally:
                if self._stopped:
                    self.go()
                self.end()

    def _shadows_exist(self) -> bool:
        return self._journal is not None and any(e.shadow for e in self._journal.entries())

    def _give_up(self, session: CriuSession) -> None:
        try:
            session.give_up(self._limits.give_up)
            session.close()
        except CriuDiedError:
            session.kill()
            raise
        except CwError as error:
            session.kill()  # it did not give up in time
            raise session.death() from error
        finally:
            # A dead criu leaves sockets in repair mode, a table that drops packets, changed tasks.
            self._to_repair |= session.died

    def _close(self) -> None:
        if self._hold is not None:
            self._hold.close()
        if self._session is not None:
            self._session.close()
        if self._pages is not None:
            self._pages.close()
        if self._journal is not None:
            self._journal.close()
