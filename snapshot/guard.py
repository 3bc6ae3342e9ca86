"""The guard of a take or restore: a small program that lets the job go on when we have died.

It is told what is going on by the file `guard` in the work folder, which only grows
(docs/internals/guard.md), and watches the other end of a pipe. The same program puts a job right at
once when criu has died (:func:`put_right`), or when everybody has (`doctor --fix`).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.native import program
from cw_snapshot.snapshot.tree import Tree
from cw_snapshot.snapshot.work_folder import (
    GUARD_FILE,
    WorkFolder,
    folders_in_use,
    remove_folder,
    taken_over,
)

_HARMED = 1


class NoGuardError(CwError):
    """The guard, which would let the job go on if this command died, could not be started: {why}.

    Fix: `cw-snapshot doctor`; the job was not touched.
    """

    exit_code = ExitCode.REFUSED


class JobHarmedError(CwError):
    """The job may have been harmed: not all could be put right.

    Fix: watch it; if it fails, restore it from its last snapshot.
    """

    exit_code = ExitCode.HARMED


class Guard:
    """Watches over one take or restore from before the first SIGSTOP.

    :param kind: `take` or `restore`.
    :param us: pid of the process that does the work.
    :param give_up: how long criu may take to give up before the guard kills it.
    :param log: file in which the guard tells what it has done.
    """

    def __init__(self, work: WorkFolder, kind: str, us: int, *, give_up: timedelta, log: Path) -> None:
        self._file = (work.path / GUARD_FILE).open("a", buffering=1)
        self._process: subprocess.Popen[bytes] | None = None
        self._file.write(f"cw-guard 1\n{kind}\ngive-up {round(give_up.total_seconds() * 1000)}\n")
        self._write_process("principal", us)
        self._start(work.path, log)

    def _start(self, folder: Path, log: Path) -> None:
        try:
            self._process = subprocess.Popen(
                [program("cw-guard"), "--log", log, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NoGuardError(why=error.strerror) from error
        assert self._process.stdout is not None and self._process.stderr is not None
        with self._process.stdout as stdout:
            if stdout.readline() != b"ready\n":
                why = self._process.stderr.read().decode(errors="replace").strip()
                raise NoGuardError(why=why or f"exit status {self._process.wait()}")

    def _write_process(self, key: str, pid: int) -> None:
        self._file.write(f"{key} {pid} {procfs.read_stat(pid).starttime}\n")

    def _changed(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # its death changes nothing for the job
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()

    def root(self, pid: int, space: int = 0) -> None:
        """Name the root of the tree; in a restore its cw-init.

        :param space: inode of its pid namespace, by which its shadows are known when it has ended.
        """
        self._file.write(f"space {space}\n")
        self._write_process("root", pid)
        self._changed()

    def criu(self, pid: int) -> None:
        """Name the leader of criu's process group."""
        self._write_process("criu", pid)
        self._changed()

    def table(self, criu_id: str) -> None:
        """In a restore: the id in the name of the table that criu finds or makes."""
        self._file.write(f"table {criu_id}\n")
        self._changed()

    def stopped_before(self, pid: int) -> None:
        """A task that somebody else has stopped and that must stay so."""
        self._file.write(f"stopped {pid}\n")

    def deadline(self, limit: timedelta) -> None:
        """The job must run again within that time; after it the guard ends us and takes over."""
        self._file.write(f"deadline {round((time.monotonic() + limit.total_seconds()) * 1000)}\n")
        self._changed()

    def went(self) -> None:
        """The job runs: there is nothing more to do for it."""
        self._file.write("went\n")
        self._changed()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Dismiss the guard; the work folder must have been removed."""
        self._file.close()
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()


class TreeBusyError(CwError):
    """Another take is at work on this tree, or on a part of it: {folder}.

    Fix: wait for it. Two would stop and change the same tasks.
    """

    exit_code = ExitCode.REFUSED


def refuse_overlap(tree: Tree) -> None:
    """Raise :class:`TreeBusyError` when a take of this tree, a part of it, or one that holds it is still
    in its pause, whatever its job is called and wherever its state is kept. Call it under `entry_lock`."""
    related = {m.pid for m in tree.members} | set(_ancestors(tree.root.pid))
    for folder in folders_in_use():
        with suppress(OSError):
            lines = (folder / GUARD_FILE).read_text().splitlines()
            roots = [int(line.split()[1]) for line in lines if line.startswith("root ")]
            if "went" not in lines and not related.isdisjoint(roots):
                raise TreeBusyError(folder=folder)


def _ancestors(pid: int) -> Iterator[int]:
    with suppress(procfs.ProcessGoneError):
        while (pid := procfs.read_stat(pid).ppid) > 1:
            yield pid


def recover(folder: Path) -> None:
    """Put right and remove what a dead take or restore has left, if its guard has died too.

    :param folder: its work folder; nothing is done while somebody uses it.
    :raises JobHarmedError: when the job may have been harmed.
    """
    with taken_over(folder) as ours:
        if not ours:
            return
        try:
            if (folder / GUARD_FILE).exists():
                put_right(folder)
        finally:
            remove_folder(folder)


def put_right(folder: Path) -> list[str]:
    """Repair what a dead criu, or a dead take or restore, has left of a job, and let it go on.

    :param folder: the work folder. Its criu must be gone or about to give up.
    :returns: what was done.
    :raises JobHarmedError: when the job may have been harmed.
    """
    done = subprocess.run([program("cw-guard"), "--now", folder], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode:
        raise JobHarmedError(evidence=lines)
    return lines
