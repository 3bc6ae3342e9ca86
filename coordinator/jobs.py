"""The jobs of this node: their records, how they were started, whether they still run."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.state import make_private, read_json, write_json
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.launch import Launched, host_pid

_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_POLL_SECONDS = 0.05


class BadIdentityError(CwError):
    """{value!r} can't be a {what}.

    Fix: use letters, digits, dot, underscore and dash, at most 64, beginning with a letter or digit.
    """

    exit_code = ExitCode.USAGE


class JobNotFoundError(CwError):
    """There is no job {job!r} on this node.

    Fix: `cw-snapshot ps --all` lists them.
    """

    exit_code = ExitCode.NOT_FOUND


class JobRunsError(CwError):
    """Job {job} runs already, as incarnation {incarnation} below pid {pid}.

    Fix: `cw-snapshot stop {job}`; a new job can have another id.
    """

    exit_code = ExitCode.REFUSED


class JobNotStoppedError(CwError):
    """Job {job} was killed and has not ended within {seconds:g} s.

    Fix: `cw-snapshot wait {job}`; a task may hang in the kernel (state D), see /proc/PID/stack.
    """

    exit_code = ExitCode.ABORTED


class JobNotRunningError(CwError):
    """Job {job} does not run: {state}.

    Fix: if it has a snapshot, `cw-snapshot restore latest:{job}` brings it back.
    """

    exit_code = ExitCode.NOT_FOUND


def check_identity(what: str, value: str) -> str:
    """Job ids, labels and snapshot names share one alphabet."""
    if not _IDENTITY.fullmatch(value):
        raise BadIdentityError(what=what, value=value)
    return value


class JobState(Enum):
    RUNNING = "running"
    ENDED = "ended"
    """It ended and its cw-init wrote down how."""
    LOST = "lost"
    """Its cw-init is gone without a word: it was killed, or the machine was restarted."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of a job's newest incarnation."""

    id: str
    incarnation: int
    """0 as first started, one more after each restore or fresh start."""
    command: list[str]
    folder: str
    log: str
    status: str
    """File that cw-init writes at the end of the job."""
    init: int
    init_starttime: int
    root: int
    """Pid of the job root inside its pid namespace."""
    boot: str
    started: str
    """UTC, ISO 8601."""
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    restored_from: str = ""

    @property
    def root_pid(self) -> int:
        """Pid of the job root as we see it."""
        return host_pid(self.init, self.root)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and how it stands."""

    record: JobRecord
    state: JobState
    exit_code: int | None = None
    signal: int = 0

    def describe(self) -> str:
        if self.state is JobState.ENDED:
            return f"ended by signal {self.signal}" if self.signal else f"ended with status {self.exit_code}"
        return str(self.state.value)


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class JobStore:
    """The jobs under a state directory, one folder each."""

    def __init__(self, state_dir: Path) -> None:
        self._jobs = state_dir / "jobs"

    def folder(self, job: str) -> Path:
        return self._jobs / check_identity("job id", job)

    def lock_path(self, job: str) -> Path:
        return self.folder(job) / "lock"

    def find(self, job: str) -> JobView:
        """:raises JobNotFoundError: no such job was ever started here."""
        data = read_json(self.folder(job) / "job.json")
        if data is None:
            raise JobNotFoundError(job=job)
        return _view(JobRecord(**data))

    def running(self, job: str) -> JobRecord:
        """The record of a job that runs.

        :raises JobNotRunningError: it does not.
        """
        view = self.find(job)
        if view.state is not JobState.RUNNING:
            raise JobNotRunningError(job=job, state=view.describe())
        return view.record

    def all(self) -> list[JobView]:
        if not self._jobs.is_dir():
            return []
        found = (read_json(folder / "job.json") for folder in sorted(self._jobs.iterdir()))
        return [_view(JobRecord(**data)) for data in found if data]

    def next_incarnation(self, job: str, least: int = 0) -> tuple[int, Path]:
        """Number and new folder for another incarnation of a job that does not run.

        :param least: the number is not below this one.
        :raises JobRunsError: it does.
        """
        incarnation = least
        with suppress(JobNotFoundError):
            view = self.find(job)
            if view.state is JobState.RUNNING:
                raise JobRunsError(job=job, incarnation=view.record.incarnation, pid=view.record.init)
            incarnation = max(least, view.record.incarnation + 1)
        folder = self.folder(job) / str(incarnation)
        while folder.exists():  # left by a start that failed
            incarnation += 1
            folder = self.folder(job) / str(incarnation)
        return incarnation, make_private(folder)

    def save(self, record: JobRecord) -> None:
        make_private(self.folder(record.id))
        write_json(self.folder(record.id) / "job.json", asdict(record))

    def forget(self, job: str) -> None:
        """Remove the record of a job that never came to life here."""
        (self.folder(job) / "job.json").unlink(missing_ok=True)


def tree_store(state_dir: Path, tree: int) -> JobStore:
    """The trees of that number of jobs on several nodes: a node may have several trees of one job."""
    return JobStore(state_dir / "trees" / str(tree))


def tree_stores(state_dir: Path) -> list[JobStore]:
    """All of them."""
    folder = state_dir / "trees"
    return [JobStore(entry) for entry in sorted(folder.iterdir())] if folder.is_dir() else []


def new_record(
    job: str,
    incarnation: int,
    launched: Launched,
    *,
    root: int,
    command: list[str],
    folder: Path | str,
    log: Path | str,
    status: Path,
    user: str = "",
    labels: Mapping[str, str] | None = None,
    restored_from: str = "",
) -> JobRecord:
    """The record of a tree that was just started."""
    return JobRecord(
        id=job,
        incarnation=incarnation,
        command=command,
        folder=str(folder),
        log=str(log),
        status=str(status),
        init=launched.init,
        init_starttime=launched.init_starttime,
        root=root,
        boot=procfs.boot_id(),
        started=now_text(),
        user=user,
        labels=dict(labels or {}),
        restored_from=restored_from,
    )


def _view(record: JobRecord) -> JobView:
    # Alive is asked first: a job that ends in between has written its status by then.
    alive = _alive(record)
    ended = read_json(Path(record.status))
    if ended is not None:
        return JobView(record, JobState.ENDED, ended["exit_code"], ended["signal"])
    return JobView(record, JobState.RUNNING if alive else JobState.LOST)


def _alive(record: JobRecord) -> bool:
    return lives(record.init, record.init_starttime, record.boot)


def lives(pid: int, starttime: int, boot: str) -> bool:
    """A pid alone proves nothing: start time and boot id tell whether it is still the same."""
    if boot != procfs.boot_id():
        return False
    try:
        stat = procfs.read_stat(pid)
    except procfs.ProcessGoneError:
        return False
    return stat.starttime == starttime and stat.state not in "ZX"


def wait(store: JobStore, job: str, limit: timedelta | None = None) -> JobView:
    """Wait until a job has ended; returns how it stands at the latest after `limit`."""
    deadline = None if limit is None else time.monotonic() + limit.total_seconds()
    while (view := store.find(job)).state is JobState.RUNNING:
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return view


def stop(store: JobStore, job: str, grace: timedelta) -> JobView:
    """SIGTERM to the job root, SIGKILL to it after `grace`; its end ends the whole tree. A job that
    has ended stays so.

    :raises JobNotStoppedError: it still has not ended.
    """
    view = store.find(job)
    if view.state is not JobState.RUNNING:
        return view
    record = view.record
    with suppress(ProcessLookupError):
        os.kill(record.init, signal.SIGTERM)
    view = wait(store, job, grace)
    if view.state is JobState.RUNNING:
        kill_root(record)
        # Its memory may take long to free, however short the grace was.
        limit = max(grace, deadlines.STOP_GRACE)
        view = wait(store, job, limit)
        if view.state is JobState.RUNNING:
            raise JobNotStoppedError(job=job, seconds=limit.total_seconds(), evidence=[f"pid {record.init}"])
    return view


def kill_root(record: JobRecord) -> None:
    """SIGKILL the job root; cw-init writes its status and ends the rest."""
    with suppress(ProcessLookupError, procfs.ProcessGoneError):
        os.kill(record.root_pid, signal.SIGKILL)


def to_json(view: JobView) -> dict[str, Any]:
    """A job as `ps --json` shows it."""
    return {
        **asdict(view.record),
        "state": view.state.value,
        "exit_code": view.exit_code,
        "signal": view.signal,
    }
