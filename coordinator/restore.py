"""Restoring a job from a snapshot: plan, fetch, skeleton, pages, go."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.deadlines import JobSize
from cw_snapshot.coordinator.expectation import repository_name
from cw_snapshot.coordinator.jobs import JobNotFoundError, JobRunsError, JobState, JobStore, lives, new_record
from cw_snapshot.coordinator.leftovers import recover_dead_operations
from cw_snapshot.coordinator.limits import refuse_low_limits
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import ignore_signals, interruptible
from cw_snapshot.coordinator.state import exclusive, make_private
from cw_snapshot.errors import CwError, ExitCode, UsageError
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.file_evidence import FileRecord
from cw_snapshot.snapshot.file_rules import Act, Decision, FilePolicy
from cw_snapshot.snapshot.findings import Finding
from cw_snapshot.snapshot.restore import FileSink, NodeRestore
from cw_snapshot.storage.commit import Commit, SnapshotRef
from cw_snapshot.storage.manifest import ManifestRef
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository


class SeveralNodesError(CwError):
    """Snapshot {snapshot} is of {count} nodes; this release restores jobs of one node.

    Fix: use a release with multi-node restore.
    """

    exit_code = ExitCode.REFUSED


class OriginalRunsError(CwError):
    """The tree of which {snapshot} was taken still runs, as pid {pid}; both would write to the same files.

    Fix: end it first (`kill {pid}`), or take with --stop the next time.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What `cw-snapshot restore` was asked for."""

    snapshot: SnapshotRef
    files: FilePolicy = FilePolicy.REFUSE
    redirect_to: Path | None = None


class RestoreProgress(Protocol):
    """What a restore tells while it works."""

    def phase(self, name: str) -> None: ...
    def pages(self, done: int, total: int) -> None: ...


@dataclass(slots=True)
class RestoreReport:
    """What a restore has to tell in the end."""

    job: str
    snapshot: str
    incarnation: int = 0
    pid: int = 0
    """Of the job root, as we see it."""
    log: str = ""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds that each phase took."""
    poured_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    files: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "snapshot": self.snapshot,
            "incarnation": self.incarnation,
            "pid": self.pid,
            "log": self.log,
            "phase_seconds": self.times,
            "poured_bytes": self.poured_bytes,
            "findings": [f.to_json() for f in self.findings],
            "files": [
                {"path": d.record.path, "act": d.act.value, "why": d.why}
                for d in self.files
                if d.act is not Act.USE
            ],
            "notes": self.notes,
        }


def restore(
    request: RestoreRequest,
    store: JobStore,
    repository: Repository,
    settings: Settings,
    progress: RestoreProgress,
    *,
    plan_only: bool = False,
) -> RestoreReport:
    """Bring a job back; with `plan_only` only tell what would happen.

    :raises JobRunsError, OriginalRunsError: an earlier incarnation runs.
    :raises RestoreRefusedError, FilesDifferError: before anything was made.
    """
    if request.files is FilePolicy.REDIRECT and request.redirect_to is None:
        raise UsageError(what="--files redirect needs a folder")
    job = request.snapshot.job
    refuse_if_running(store, job)
    commit = repository.read_commit(request.snapshot)
    if len(commit.nodes) != 1:
        raise SeveralNodesError(snapshot=commit.snapshot, count=len(commit.nodes))
    refuse_if_original_runs(commit)
    reader = TreeReader(repository, ManifestRef(commit.nodes[0].digest, commit.nodes[0].size, None))
    if plan_only:
        log = Path((commit.summary.get("job") or {}).get("log", os.devnull))
        node = NodeRestore(reader.metadata, criu=find_criu(), log=log)
        report = RestoreReport(job, commit.snapshot)
        report.findings, report.files = node.plan(request.files, request.redirect_to)
        reader.check()
        return report
    refuse_low_limits()
    details = {
        "snapshot": commit.snapshot,
        "options": {
            "files": request.files.value,
            "redirect_to": str(request.redirect_to) if request.redirect_to else None,
        },
        "repository": repository_name(settings),
        "settings": settings.to_json(),
    }
    with (
        exclusive(store.lock_path(job), job),
        interruptible(),
        operation(settings, "restore", job, details) as op,
    ):
        recover_dead_operations()
        refuse_if_running(store, job)
        restoring = _Restore(request, commit, reader, store, settings, progress, op)
        try:
            report = restoring.run()
        finally:
            op.result = restoring.report.to_json()
    if op.unwritten:
        report.notes.append(op.unwritten)
    return report


def refuse_if_running(store: JobStore, job: str) -> None:
    """Two incarnations of one job would write to the same files."""
    with suppress(JobNotFoundError):
        view = store.find(job)
        if view.state is JobState.RUNNING:
            raise JobRunsError(job=job, incarnation=view.record.incarnation, pid=view.record.init)


def refuse_if_original_runs(commit: Commit) -> None:
    """`take --pid` leaves no job behind that could be asked: the root itself is looked for."""
    original = commit.summary.get("original")
    if original and lives(**original):
        raise OriginalRunsError(snapshot=commit.snapshot, pid=original["pid"])


class _Restore:
    """One restore from plan to go."""

    def __init__(
        self,
        request: RestoreRequest,
        commit: Commit,
        reader: TreeReader,
        store: JobStore,
        settings: Settings,
        progress: RestoreProgress,
        op: Operation,
    ) -> None:
        self._request = request
        self._commit = commit
        self._reader = reader
        self._store = store
        self._settings = settings
        self._progress = progress
        self._op = op
        self.report = RestoreReport(commit.job, commit.snapshot)
        """What is known so far, also when it fails."""
        self._job: Mapping[str, Any] = commit.summary.get("job") or {}
        self._phase_begun = time.monotonic()

    def run(self) -> RestoreReport:
        report, reader = self.report, self._reader
        incarnation, own = self._store.next_incarnation(self._commit.job)
        report.incarnation = max(incarnation, self._commit.incarnation + 1)
        log = Path(self._job.get("log") or own / "output.log")
        report.log = str(log)
        status = own / "status.json"
        size = JobSize(len(reader.metadata["processes"]), 0)
        node = NodeRestore(
            reader.metadata,
            criu=find_criu(),
            name=self._op.id,
            limits=deadlines.restore_limits(size),
            log=log,
            status=status,
            log_level=self._settings.criu_log_level,
            guard_log=self._op.folder / "guard.log",
        )
        self._note_phase("plan")
        report.findings, report.files = node.plan(self._request.files, self._request.redirect_to)
        reader.check()  # before a file of the job is changed
        self._done("plan")
        try:
            self._fetch(node, log)
            self._done("fetch")
            self._note_phase("skeleton")
            node.skeleton()
            node.unlock()
            self._done("skeleton")
            self._pour(node)
            self._done("pages")
            ignore_signals()  # once it runs it is not ended again
            report.pid = node.go()
            self._done("go")
            self._remember(node, report.incarnation, status, log)
        except BaseException as error:
            try:
                ignore_signals()
            finally:  # also when one came just now
                self._undo(node, own, error)
            raise
        node.end()
        report.notes = node.notes
        return report

    def _undo(self, node: NodeRestore, own: Path, error: BaseException) -> None:
        """End the half-made tree and remove the incarnation's folder."""
        self._op.keep_log(node.log, error)
        if isinstance(error, CwError):
            error.evidence += [f"stays so: {note}" for note in node.notes]
        node.abort()
        with suppress(OSError):
            (own / "status.json").unlink(missing_ok=True)
            own.rmdir()

    def _note_phase(self, name: str) -> None:
        self._progress.phase(name)
        self._op.phase(name)

    def _done(self, phase: str) -> None:
        now = time.monotonic()
        self.report.times[phase] = round(now - self._phase_begun, 6)
        self._phase_begun = now

    def _fetch(self, node: NodeRestore, log: Path) -> None:
        """Criu's images to the work folder, and the files of the job as they were decided."""
        self._note_phase("fetch")
        make_private(log.parent)
        sizes = {
            name: stream.size for name, stream in self._reader.streams.items() if stream.size is not None
        }
        sinks = node.image_sinks(sizes)
        self._reader.pour(sinks, threads=self._settings.threads)

        def pour(record: FileRecord, target: Path) -> None:
            sink = FileSink(target, sizes[record.carried])
            try:
                self._reader.pour({record.carried: sink}, threads=self._settings.threads)
            finally:
                sink.close()

        node.prepare(pour, self._request.redirect_to, self._commit.snapshot)

    def _pour(self, node: NodeRestore) -> None:
        self._note_phase("pages")

        def progress(done: int, total: int) -> None:
            self.report.poured_bytes = total
            self._progress.pages(done, total)
            self._op.progress(done, total)

        self._reader.pour(node.sinks(), threads=self._settings.threads, progress=progress)

    def _remember(self, node: NodeRestore, incarnation: int, status: Path, log: Path) -> None:
        assert node.launched is not None
        metadata = self._reader.metadata
        first = metadata["processes"][0]
        record = new_record(
            self._commit.job,
            incarnation,
            node.launched,
            root=metadata["root"],
            command=self._job.get("command") or first.get("cmdline", []),
            folder=self._job.get("folder", ""),
            log=log,
            status=status,
            user=self._job.get("user", ""),
            labels=self._job.get("labels"),
            restored_from=self._commit.snapshot,
        )
        self._store.save(record)
