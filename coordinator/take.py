"""Taking a job: the phases of one node's tree, then pages into the repository, then the commit."""

from __future__ import annotations

import os
import platform
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.deadlines import JobSize
from cw_snapshot.coordinator.expectation import Expectation, repository_name
from cw_snapshot.coordinator.jobs import JobRecord, JobStore, check_identity, kill_root
from cw_snapshot.coordinator.leftovers import recover_dead_operations
from cw_snapshot.coordinator.limits import refuse_low_limits
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import InterruptedBySignalError, ignore_signals, interruptible
from cw_snapshot.coordinator.state import exclusive, read_json
from cw_snapshot.coordinator.storing import store_tree, tree_writer
from cw_snapshot.coordinator.take_report import TakeReport
from cw_snapshot.errors import CwError, ExitCode, InternalError, SystemFailedError
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot import tree as trees
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.criu_session import CriuDiedError
from cw_snapshot.snapshot.findings import Finding, Severity, refusals
from cw_snapshot.snapshot.job_facts import HUGE_BYTES
from cw_snapshot.snapshot.journal import Fault
from cw_snapshot.snapshot.predict import Prediction
from cw_snapshot.snapshot.preflight import PreflightRefusedError
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.snapshot.tree import Tree
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import Commit, NodeManifest
from cw_snapshot.storage.manifest import ManifestRef
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter, WriteStats

_NEVER_FORCED = {"own-tree", "not-a-job"}
"""Refusals of preflight: such a take would stop this command itself, or the machine."""


class SnapshotLostError(CwError):
    """The snapshot was lost after the pause; the job runs on as before. Cause: {cause}

    Fix: {fix}
    """

    exit_code = ExitCode.LOST


class TakeAbortedError(CwError):
    """The take was given up; the job runs on as before. Cause: {cause}

    Fix: {fix}
    """

    exit_code = ExitCode.ABORTED


class JobEndedError(CwError):
    """The job ended while it was taken; no snapshot was made. Cause: {cause}

    Fix: `cw-snapshot ps --all` shows how it ended.
    """

    exit_code = ExitCode.ABORTED


class PauseTooLongError(CwError):
    """The job would be paused for {predicted:.0f} ms, longer than the {allowed:.0f} ms of
    --max-pause; it was not stopped.

    Fix: raise --max-pause, or see with `take --plan` what the pause is made of.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """What `cw-snapshot take` was asked for."""

    job: str
    root: int
    """Pid of the tree's root as we see it."""
    record: JobRecord | None = None
    """None for a tree that we did not start."""
    stop: bool = False
    name: str | None = None
    force: bool = False
    collapse: bool = False
    """Make huge pages of the job's small ones first."""
    fault: Fault | None = None
    """Test switch."""


class TakeProgress(Protocol):
    """What a take tells while it works."""

    def phase(self, name: str) -> None:
        """A phase begins. Not called during the pause, which has no time for it."""

    def pages(self, stats: WriteStats, total: int) -> None:
        """So much is stored of `total` bytes."""


def plan_take(request: TakeRequest, settings: Settings) -> TakeReport:
    """What a take would find and cost; nothing is stopped."""
    begun = time.monotonic()
    tree = trees.find(request.root)
    expectation = Expectation(request.job, settings)
    predicted = expectation.of(tree)
    node = _node(tree, predicted, request, settings, None)
    report = TakeReport(request.job, predicted=predicted, processes=len(tree.living))
    report.findings = node.preflight(predicted.facts)
    report.preflight_seconds = time.monotonic() - begun
    if request.collapse:
        report.collapsing = expectation.planned_collapse(tree, predicted)
    return report


def refusals_that_stand(findings: list[Finding], *, force: bool) -> list[Finding]:
    """The refusals that `--force` does not override: all without it."""
    return [f for f in refusals(findings) if not force or f.code in _NEVER_FORCED]


def _node(
    tree: Tree, predicted: Prediction, request: TakeRequest, settings: Settings, op: Operation | None
) -> NodeTake:
    size = JobSize(predicted.facts.processes, predicted.facts.private_bytes)
    return NodeTake(
        tree,
        criu=find_criu(),
        name=op.id if op else "",
        limits=deadlines.take_limits(size, settings.max_pause, stop=request.stop),
        log_level=settings.criu_log_level,
        guard_log=op.folder / "guard.log" if op else Path(os.devnull),
        fault=request.fault,
    )


def take(
    request: TakeRequest, store: JobStore, repository: Repository, settings: Settings, progress: TakeProgress
) -> TakeReport:
    """Take one job. It runs on, unless `request.stop`; the errors' exit codes tell how it stands."""
    refuse_low_limits()
    check_identity("job id", request.job)
    if request.name is not None:
        check_identity("snapshot name", request.name)
    details = {
        "root": request.root,
        "options": {
            "stop": request.stop,
            "name": request.name,
            "force": request.force,
            "collapse": request.collapse,
        },
        "repository": repository_name(settings),
        "settings": settings.to_json(),
    }
    with (
        exclusive(store.lock_path(request.job), request.job),
        interruptible(),
        operation(settings, "take", request.job, details) as op,
    ):
        taking = _Take(request, repository, settings, progress, op)
        try:
            report = taking.run()
        except InterruptedBySignalError as error:
            raise TakeAbortedError(cause=error.message, fix="take again.") from error
        finally:
            op.result = taking.report.to_json()
    if op.unwritten:
        report.findings.append(Finding("record", Severity.WARNING, op.unwritten))
    return report


class _Take:
    """One take from preflight to commit."""

    def __init__(
        self,
        request: TakeRequest,
        repository: Repository,
        settings: Settings,
        progress: TakeProgress,
        op: Operation,
    ) -> None:
        self._request = request
        self._repository = repository
        self._settings = settings
        self._progress = progress
        self._op = op
        self.report = TakeReport(request.job)
        """What is known so far, also when it fails."""
        self._begun = time.monotonic()
        self._paused = 0.0
        """When the pause ended."""
        self._went = False
        self._root_start = 0
        """Start time of the tree's root: with its pid it tells whether the job has ended."""
        self._total = 0
        """Bytes to store."""

    def run(self) -> TakeReport:
        report = self.report
        self._note_phase("preflight")
        recover_dead_operations()
        # First: a store that does not answer, or too little memory, must cost the job nothing.
        if self._request.name is not None:
            self._repository.refuse_name(self._request.name)
        broker = LocalBroker(self._repository.load_index())
        with self._writer(broker) as writer:
            node = self._checked_node()
            try:
                self._pause(node)
                manifest = self._store(node, writer)
                report.snapshot = self._commit(manifest).snapshot
                self._note_time()
                ignore_signals()
                if self._request.stop:
                    self._end_job(node)
                node.end()
            except BaseException as error:
                try:
                    ignore_signals()
                finally:  # also when one came just now
                    self._give_up(node, error)
        return report

    def _checked_node(self) -> NodeTake:
        tree = trees.find(self._request.root)
        self._root_start = procfs.read_stat(tree.root.pid).starttime
        expectation = Expectation(self._request.job, self._settings)
        predicted, node = self._predicted_node(expectation, tree)
        if self._request.collapse:
            self._note_phase("collapse")
            self.report.collapsing = expectation.collapse(tree, predicted)
            # That may have taken long.
            predicted, node = self._predicted_node(expectation, trees.find(self._request.root))
        allowed = self._settings.max_pause.total_seconds()
        if predicted.pause_seconds > allowed and not self._request.stop:
            collapsed = self.report.collapsing.collapse.collapsed if self.report.collapsing else 0
            told = [f"{collapsed * HUGE_BYTES >> 20} MiB were made huge pages before"] if collapsed else []
            milliseconds = {"predicted": predicted.pause_seconds * 1e3, "allowed": allowed * 1e3}
            raise PauseTooLongError(evidence=told, **milliseconds)
        return node

    def _predicted_node(self, expectation: Expectation, tree: Tree) -> tuple[Prediction, NodeTake]:
        """Look at the tree as it is now.

        :raises PreflightRefusedError: it can't be taken.
        """
        begun = time.monotonic()
        predicted = expectation.of(tree, begun - self._begun)
        node = _node(tree, predicted, self._request, self._settings, self._op)
        report = self.report
        report.predicted, report.processes = predicted, len(tree.living)
        report.findings = node.preflight(predicted.facts)
        report.preflight_seconds = time.monotonic() - begun
        if bad := refusals_that_stand(report.findings, force=self._request.force):
            raise PreflightRefusedError(bad)
        return predicted, node

    def _pause(self, node: NodeTake) -> None:
        self._note_phase("pause")
        try:
            node.open()
            node.stop()
            node.skeleton()
            node.shadow()
            if not self._request.stop:
                node.go()
                self._went = True
                self.report.pause_seconds = round(node.times.went, 6)
            self._paused = time.monotonic()
        finally:
            self.report.times = node.times.to_json()
        self.report.without_shadow = list(node.without_shadow)
        self.report.criu = node.plugin_stats

    def _writer(self, broker: LocalBroker) -> TreeWriter:
        return tree_writer(
            self._repository,
            broker,
            self._settings,
            self._note_pages,
        )

    def _note_phase(self, name: str) -> None:
        self._progress.phase(name)
        self._op.phase(name)

    def _note_pages(self, stats: WriteStats) -> None:
        self._progress.pages(stats, self._total)
        self._op.progress(stats.seen_bytes, self._total)

    def _store(self, node: NodeTake, writer: TreeWriter) -> ManifestRef:
        self._note_phase("pages")
        manifest = store_tree(node, writer, self._settings.threads, self._set_total)
        self.report.stats = writer.stats
        self.report.extra_memory_bytes = node.extra_memory_bytes
        return manifest

    def _set_total(self, total: int) -> None:
        self._total = total

    def _note_time(self) -> None:
        now = time.monotonic()
        self.report.store_seconds = now - self._paused
        self.report.durable_seconds = now - self._begun

    def _commit(self, manifest: ManifestRef) -> Commit:
        self._note_phase("commit")
        record = self._request.record
        self._note_time()  # all but the commit itself
        report = self.report.to_json()
        told = ("pause_seconds", "pause_parts_seconds", "compared", "collapse", "pages")
        summary = {
            "take": {key: report[key] for key in told},
            "processes": self.report.processes,
            # A restore asks whether it still lives.
            "original": {
                "pid": self._request.root,
                "starttime": self._root_start,
                "boot": procfs.boot_id(),
            },
            "job": asdict(record) if record else None,
        }
        return self._repository.commit(
            job=self._request.job,
            incarnation=record.incarnation if record else 0,
            nodes=[NodeManifest(platform.node() or "node", manifest.digest, manifest.size)],
            indexes=[manifest.index] if manifest.index else [],
            name=self._request.name,
            summary=summary,
        )

    def _end_job(self, node: NodeTake) -> None:
        """The snapshot is durable: now, and not before, the job is killed."""
        if self._request.record is not None:
            kill_root(self._request.record)
        trees.kill(node.tree.members)
        self.report.stopped_job = True

    def _give_up(self, node: NodeTake, error: BaseException) -> None:
        """Undo, and say in the error how the job stands."""
        self._op.keep_log(node.log, error)
        criu_died = isinstance(error, CriuDiedError)
        try:
            node.abort()
        except CwError as worse:
            criu_died |= isinstance(worse, CriuDiedError)
            error = worse
        if isinstance(error, OSError):
            error = SystemFailedError(error)
        if self.report.snapshot:
            if isinstance(error, CwError):
                error.evidence.append(f"the snapshot {self.report.snapshot} is durable")
            raise error
        if self._job_ended():
            if criu_died and isinstance(error, CwError) and not self._ended_by_somebody():
                error.evidence.append("the job has ended")
                raise error
            cause = error.message if isinstance(error, CwError) else f"{type(error).__name__}: {error}"
            raise JobEndedError(cause=cause, evidence=getattr(error, "evidence", [])) from error
        if not isinstance(error, CwError):
            raise InternalError(what=f"{type(error).__name__}: {error}; the job runs on") from error
        if error.exit_code is ExitCode.HARMED or (error.exit_code is ExitCode.REFUSED and not self._went):
            raise error
        told = {"cause": error.message, "evidence": error.evidence, "fix": error.fix or "take again."}
        if self._went:
            raise SnapshotLostError(**told) from error
        if error.exit_code is not ExitCode.ABORTED or self._request.stop:
            raise TakeAbortedError(**told) from error
        raise error

    def _job_ended(self) -> bool:
        try:
            root = procfs.read_stat(self._request.root)
        except procfs.ProcessGoneError:
            return True
        return root.starttime != self._root_start or root.state in "ZX"

    def _ended_by_somebody(self) -> bool:
        """Whether the job was ended on purpose, and its criu with it: not by what a dying criu does."""
        record = self._request.record
        status = read_json(Path(record.status)) if record else None
        return record is not None and (status is None or status["signal"] in (signal.SIGKILL, signal.SIGTERM))
