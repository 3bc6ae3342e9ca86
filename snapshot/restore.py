"""Restoring one tree: from images in memory to running tasks.

    plan      refuse with reasons before anything is made
    prepare   images into a folder, files of the job put right
    skeleton  criu rebuilds the tree below a fresh cw-init and waits in post-restore; no connection sends
    unlock    they may speak: the other ends exist
    sinks     where the pages go, while criu holds every task
    go        criu lets go, the tasks come back stopped, SIGCONT

Pages are poured inside criu's post-restore hold and never later: once criu lets go a pending
SIGCHLD pushes a frame on the stack, the poured stack overwrites it, and the process jumps into
garbage (research: every run with DataLoader workers crashed).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import (
    family_images,
    ghosts,
    images,
    listening,
    network_lock,
    platform_facts,
    procfs,
    tree,
)
from cw_snapshot.snapshot.addresses import AddressMap, rewrite
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.criu_session import CriuSession, RestoringCriuDiedError
from cw_snapshot.snapshot.dump_options import LOG_LEVEL, NO_BREAKPOINTS, restore_options
from cw_snapshot.snapshot.file_evidence import FileRecord
from cw_snapshot.snapshot.file_restore import (
    PourFile,
    apply,
    decide_all,
    edit_images,
    refuse_if_needed,
)
from cw_snapshot.snapshot.file_rules import Decision, FilePolicy
from cw_snapshot.snapshot.findings import Finding, refusals
from cw_snapshot.snapshot.guard import Guard
from cw_snapshot.snapshot.launch import OFFERED_STDIO, Launched, host_pid, launch_restorer
from cw_snapshot.snapshot.memory import Kept, ProcessSink
from cw_snapshot.snapshot.skeleton import (
    append_to_log,
    come_back_stopped,
    forget_death_signal,
    outside_pipes,
    pid_floor,
    rseq_areas,
)
from cw_snapshot.snapshot.vm_io import Buffer
from cw_snapshot.snapshot.work_folder import WorkFolder

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_RUNTIME_DIR": "/run"}


_NOWHERE = Path(os.devnull)


class RestoreRefusedError(CwError):
    """The snapshot can't be restored on this machine; nothing was started.

    Fix: see each finding.
    """

    exit_code = ExitCode.REFUSED


class TasksNotStoppedError(CwError):
    """Restored tasks did not come back stopped; the half-made tree was removed.

    Fix: report it with criu's log.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class RestoreLimits:
    """How long each phase may take."""

    skeleton: timedelta
    go: timedelta


class FileSink:
    """A file that takes the bytes of a stream, in any order (a PageSink)."""

    def __init__(self, path: Path, size: int) -> None:
        self._size = size
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, size)

    def write(self, start: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            view = memoryview(part)[: max(0, self._size - start)]
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], start + done)
            start += len(part)

    def zero(self, start: int, nbytes: int) -> None:
        """A new file is zero where nothing was written."""

    def close(self) -> None:
        os.close(self._fd)


class NodeRestore:
    """One restore of one tree.

    :param metadata: what :func:`cw_snapshot.snapshot.describe.metadata` wrote at the take.
    :param name: of this restore, unique on the node; names its work folder.
    :param log: takes the place of stdout and stderr that were pipes to the outside.
    :param status: file that cw-init writes when the job has ended.
    :param addresses: what the addresses of the earlier allocation are now.

    `name`, `log`, `status` and `limits` may be left out for a plan only.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        *,
        criu: Criu,
        name: str = "",
        log: Path = _NOWHERE,
        status: Path = _NOWHERE,
        limits: RestoreLimits | None = None,
        guard_log: Path = _NOWHERE,
        log_level: int = LOG_LEVEL,
        addresses: AddressMap | None = None,
    ) -> None:
        self._metadata = metadata
        self._addresses = addresses or AddressMap({})
        self._criu = criu
        self._name = name
        self._work: WorkFolder | None = None
        self._limits = limits or RestoreLimits(timedelta(), timedelta())
        self._output = log
        self._guard_log = guard_log
        self._log_level = log_level
        self._guard: Guard | None = None
        self._went = False
        self._locked = False
        self._status = status
        self._files = [FileRecord.from_json(record) for record in metadata["files"]]
        self._decisions: list[Decision] = []
        self._image_sinks: list[FileSink] = []
        self._ghosts: list[Path] = []
        self._sinks: list[ProcessSink] = []
        self._session: CriuSession | None = None
        self.launched: Launched | None = None
        self.notes: list[str] = []

    @property
    def _images(self) -> Path:
        assert self._work is not None, "image_sinks() comes first"
        return self._work.path / "images"

    @property
    def log(self) -> Path | None:
        """criu's log, until :meth:`end`."""
        return self._images / "restore.log" if self._work is not None else None

    def plan(
        self, policy: FilePolicy, redirect_to: Path | None = None
    ) -> tuple[list[Finding], list[Decision]]:
        """What would be done, or :class:`RestoreRefusedError` / `FilesDifferError`. Nothing is changed."""
        findings = platform_facts.differences(self._metadata["platform"], self._criu)
        # What the job shared with us at the take it shares again: its network is always ours.
        sockets = [{**s, "local": self._addresses.source_text(s["local"])} for s in self._metadata["sockets"]]
        findings += listening.findings(sockets)
        if bad := refusals(findings):
            raise RestoreRefusedError(evidence=[str(f) for f in bad])
        self._decisions = decide_all(self._files, policy, redirect_to=redirect_to, own_log=str(self._output))
        missing = [d for d in self._metadata["directories"] if not Path(d).is_dir()]
        refuse_if_needed(self._decisions, missing)
        return findings, self._decisions

    def image_sinks(self, streams: Mapping[str, int]) -> dict[str, FileSink]:
        """Sinks for the streams that are criu's images; `streams` gives their sizes."""
        self._work = WorkFolder(self._name)
        self._guard = Guard(self._work, "restore", os.getpid(), give_up=self._limits.go, log=self._guard_log)
        self._images.mkdir(mode=0o700)
        folders = {"image": self._images, family_images.FOLDER: self._images / family_images.FOLDER}
        made = {}
        for name, size in streams.items():
            kind, _, file_name = name.partition("/")
            if folder := folders.get(kind):
                folder.mkdir(mode=0o700, exist_ok=True)
                made[name] = FileSink(folder / Path(file_name).name, size)
        family_images.link(self._images)
        self._image_sinks = list(made.values())
        return made

    def prepare(self, pour: PourFile, redirect_to: Path | None, tag: str) -> None:
        """Put the job's files right and make the images fit them."""
        for sink in self._image_sinks:
            sink.close()
        self._ghosts = ghosts.names(self._images)
        ghosts.remove(self._ghosts)  # of a restore that was killed
        edits = apply(self._decisions, pour=pour, redirect_to=redirect_to, tag=tag, notes=self.notes)
        edit_images(self._images, edits)
        forget_death_signal(self._images)
        come_back_stopped(self._images)
        rewrite(self._images, self._addresses)

    def skeleton(self) -> None:
        """Let criu rebuild the tree and hold it at post-restore."""
        pipes = outside_pipes(self._images, self._metadata["stdio"])
        append_to_log(self._images, {pipe for pipe, fd in pipes.items() if fd})
        tasks = images.tasks(self._images)
        used = {pid for t in tasks for pid in (t.ns_pid, t.pgid, t.sid, *t.threads)}
        images_fd = os.open(self._images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        guard = self._guard
        assert guard is not None, "image_sinks() comes first"
        guard.table(images.run_id(self._images))
        self._locked = True
        network_lock.lock(self._images)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.launched = launch_restorer(
                self._criu.command("swrk", str(theirs.fileno())),
                environment={**_ENVIRONMENT, **NO_BREAKPOINTS},
                pass_fds=[theirs.fileno(), images_fd],
                log=self._output,
                status=self._status,
                root=tasks[0].ns_pid,
                last_pid=pid_floor(used, procfs.pid_max()),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(images_fd)
        guard.root(self.launched.init)
        self._session = CriuSession(
            ours, what="restore the job", log=self._images / "restore.log", death=RestoringCriuDiedError
        )
        options = restore_options(images_fd, shell_job=self._metadata["shell_job"], log_level=self._log_level)
        for pipe, fd in pipes.items():
            options.inherit_fd.add(key=pipe, fd=OFFERED_STDIO + fd)
        self._session.request("RESTORE", options)
        self._session.until("post-restore", self._limits.skeleton)

    def unlock(self) -> None:
        """Let the connections speak. Called when the other ends exist, and at once, for as long as they are
        silent the kernel waits longer and longer before it sends again."""
        network_lock.unlock(self._images)
        self._locked = False

    def sinks(self) -> dict[str, ProcessSink]:
        """Where the pages of each process go, by stream name."""
        assert self.launched is not None
        tasks = images.tasks(self._images)
        restored = tree.find(host_pid(self.launched.init, tasks[0].ns_pid))
        pids = {m.ns_pid: m.pid for m in restored.members}
        made = {}
        for task in tasks:
            if images.has_memory(self._images, task.ns_pid):
                kept = [Kept(start, size) for start, size in rseq_areas(self._images, task)]
                mappings = images.vmas(self._images, task.ns_pid)
                sink = ProcessSink(pids[task.ns_pid], mappings, kept)
                made[f"pages/{task.ns_pid}"] = sink
        self._sinks = list(made.values())
        return made

    def go(self) -> int:
        """Let the job run. Returns the pid of its root as we see it."""
        assert self._session is not None and self.launched is not None
        for sink in self._sinks:
            sink.close()
        self._sinks = []
        self._session.answer(True)
        self._session.finish(self._limits.go)
        try:
            root = host_pid(self.launched.init, images.tasks(self._images)[0].ns_pid)
            restored = tree.find(root)
            self._wait_stopped(restored.living)
        except procfs.ProcessGoneError as error:
            raise TasksNotStoppedError(evidence=[error.message]) from error
        stopped_before = {m.pid for m in restored.living if m.ns_pid in self._metadata["stopped_before"]}
        tree.go(restored.members, frozenset(stopped_before))
        self._went = True
        return root

    def _wait_stopped(self, members: Sequence[tree.Member]) -> None:
        deadline = time.monotonic() + self._limits.go.total_seconds()
        while any(procfs.read_stat(m.pid).state not in "Tt" for m in members):
            if time.monotonic() > deadline:
                states = [f"pid {m.pid} is {procfs.read_stat(m.pid).state}" for m in members]
                raise TasksNotStoppedError(evidence=states)
            time.sleep(0.0005)

    def end(self) -> None:
        """Remove the work files; the job is not touched. Until then the guard would end it."""
        if self._went and self._guard is not None:
            self._guard.went()
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._work is not None:
            self._work.remove()
            self._work = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def abort(self) -> None:
        """Remove the half-made tree: the end of its cw-init ends all of it."""
        self._went = False
        for sink in self._sinks:
            sink.close()
        if self.launched is not None:
            with suppress(ProcessLookupError):
                os.kill(self.launched.init, signal.SIGKILL)
            self._wait_gone(self.launched.init)
        if self._locked:
            with suppress(network_lock.NetworkLockFailedError):
                self.unlock()
        ghosts.remove(self._ghosts)
        self.end()

    def _wait_gone(self, pid: int) -> None:
        deadline = time.monotonic() + self._limits.go.total_seconds()
        while time.monotonic() < deadline:
            try:
                if procfs.read_stat(pid).state in "ZX":
                    return
            except procfs.ProcessGoneError:
                return
            time.sleep(0.005)
