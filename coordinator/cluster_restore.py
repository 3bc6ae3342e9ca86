"""Restoring a job on several nodes: all its trees, on another allocation, or nothing anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.barrier import PLAN_ONLY, RESTORE, Barrier, Outcome, Phase
from cw_snapshot.coordinator.cluster import AgentClient, Cluster, answers_of, ask_all
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs, refuse_if_running
from cw_snapshot.coordinator.cluster_take import interfaces_of
from cw_snapshot.coordinator.conduct import Conducted, Conductor, OnProgress
from cw_snapshot.coordinator.epochs import Epochs
from cw_snapshot.coordinator.expectation import repository_name
from cw_snapshot.coordinator.jobs import now_text
from cw_snapshot.coordinator.node_links import NodeLinks
from cw_snapshot.coordinator.operations import Operation, new_name, operation
from cw_snapshot.coordinator.placement import OldTree, Placement, choose_nodes, member_names, place
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import InterruptedBySignalError, ignore_signals, interruptible
from cw_snapshot.coordinator.state import exclusive
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import service
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.file_rules import FilePolicy
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import Commit, SnapshotRef
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository


class RestoreAbortedError(CwError):
    """The restore was given up, and what had been made on each node was ended. Cause: {cause}

    Fix: {fix}
    """

    exit_code = ExitCode.ABORTED


class RestoreUnsureError(CwError):
    """The restore failed after the job was let go, and its trees on {nodes} may run: they can't be asked.
    All others were ended. Cause: {cause}

    Fix: bring these nodes back, then `cw-snapshot stop {job}`; or restore with --assume-dead NODE, if you
    know that they are dead.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class ClusterRestoreRequest:
    """What `cw-snapshot restore --nodes` was asked for."""

    snapshot: SnapshotRef
    nodes: Sequence[str]
    files: FilePolicy = FilePolicy.REFUSE
    redirect_to: Path | None = None
    assume_dead: Sequence[str] = ()


@dataclass(slots=True)
class ClusterRestoreReport:
    """What such a restore has to tell."""

    job: str
    snapshot: str
    incarnation: int = 0
    trees: list[dict[str, Any]] = field(default_factory=list)
    """Of each: its old and its new node, and its addresses."""
    node_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds from the beginning until all nodes had done a phase."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def restore(
    request: ClusterRestoreRequest,
    cluster: Cluster,
    repository: Repository,
    url: str,
    settings: Settings,
    progress: OnProgress,
    *,
    plan_only: bool = False,
) -> ClusterRestoreReport:
    """Bring a job back on `request.nodes`; with `plan_only` only tell what would happen.

    :raises ClusterJobRunsError, NodesMayRunJobError: an earlier incarnation runs, or may.
    :raises PlacementError: the job does not fit on these nodes.
    :raises RestoreAbortedError, RemoteError: nothing of it is left anywhere.
    """
    commit = repository.read_commit(request.snapshot)
    job = commit.job
    jobs = ClusterJobs(settings.state_dir)
    run = _Restore(request, commit, cluster, repository, url, settings, progress)
    if plan_only:
        refuse_if_running(jobs.find(job), cluster, job, request.assume_dead)
        with interruptible():
            return run.plan()
    locks = settings.state_dir / "cluster-jobs" / f"{job}.lock"
    details = {
        "snapshot": commit.snapshot,
        "options": {
            "files": request.files.value,
            "redirect_to": str(request.redirect_to) if request.redirect_to else None,
            "assume_dead": list(request.assume_dead),
        },
        "repository": repository_name(settings),
        "settings": settings.to_json(),
    }
    with (
        exclusive(locks, job),
        interruptible(),
        operation(settings, "restore", job, details, nodes=request.nodes) as op,
    ):
        try:
            known = jobs.find(job)
            refuse_if_running(known, cluster, job, request.assume_dead)
            return run.restore(op, known, jobs)
        except InterruptedBySignalError as error:
            raise RestoreAbortedError(cause=error.message, fix="restore again.") from error
        finally:
            op.result = run.report.to_json()


class _Restore:
    """One restore over all nodes."""

    def __init__(
        self,
        request: ClusterRestoreRequest,
        commit: Commit,
        cluster: Cluster,
        repository: Repository,
        url: str,
        settings: Settings,
        progress: OnProgress,
    ) -> None:
        self._request = request
        self._commit = commit
        self._cluster = cluster
        self._repository = repository
        self._url = url
        self._settings = settings
        self._progress = progress
        self._nodes = choose_nodes(len(commit.nodes), request.nodes)
        self._members = member_names(self._nodes)
        self.report = ClusterRestoreReport(commit.job, commit.snapshot)
        """What is known so far, also when it fails."""

    def plan(self) -> ClusterRestoreReport:
        with self._cluster.connect(self._nodes) as clients:
            done = self._conduct(clients, None, PLAN_ONLY, 0, self._place(clients))
        self.report.node_facts = done.facts.get(Phase.PLAN, {})
        return self.report

    def restore(self, op: Operation, known: ClusterJob | None, jobs: ClusterJobs) -> ClusterRestoreReport:
        commit, report = self._commit, self.report
        report.incarnation = max(commit.incarnation, known.incarnation if known else 0) + 1
        before = commit.summary.get("cluster_job") or {}
        record = ClusterJob(
            id=commit.job,
            incarnation=report.incarnation,
            nodes=self._nodes,
            command=before.get("command", []),
            started=now_text(),
            user=before.get("user", ""),
            labels=before.get("labels", {}),
            restored_from=commit.snapshot,
        )
        with self._cluster.connect(self._nodes) as clients:
            placement = self._place(clients)
            record = replace(record, former_addresses=placement.former)
            # First: should we die, the next restore asks these nodes too.
            jobs.save(record)
            try:
                done = self._conduct(clients, op, RESTORE, report.incarnation, placement)
            except RestoreUnsureError:
                raise
            except BaseException:
                jobs.put_back(record.id, known)
                raise
        report.node_facts = {
            member: {**done.facts[Phase.PLAN][member], **done.facts[Phase.PAGES][member]}
            | done.facts[Phase.COMPLETE][member]
            for member in self._members
        }
        return report

    def _conduct(
        self,
        clients: Mapping[str, AgentClient],
        op: Operation | None,
        phases: tuple[Phase, ...],
        incarnation: int,
        placement: Placement,
    ) -> Conducted:
        """:param op: None of a plan, which is not recorded."""
        operation = op.id if op else new_name("plan")
        epoch = Epochs(self._settings.state_dir / "epochs.json").next(self._commit.job)
        barrier = Barrier(epoch, self._members, phases)
        begins = {
            member: self._begin(epoch, operation, tree, incarnation, placement, phases)
            for tree, member in enumerate(self._members)
        }
        links = NodeLinks(
            {member: clients[node] for member, node in zip(self._members, self._nodes, strict=True)},
            begins,
            LocalBroker(self._repository.load_index()),
        )

        def told(node: str, phase: str, done: int, total: int) -> None:
            if op:
                op.progress(done, total, node)
            self._progress(node, phase, done, total)

        conductor = Conductor(barrier, links, deadlines.restore_phases(), told)

        def before(phase: Phase) -> None:
            if op:
                op.phase(phase)
            if phase is Phase.GO:
                ignore_signals()  # once it runs it is not ended again

        try:
            done = conductor.run(before)
            if barrier.outcome is Outcome.DONE:
                links.finish(durable=True)
        finally:
            ignore_signals()
            silent = conductor.settle(deadlines.GIVE_UP)
            self.report.phase_seconds = conductor.result.times
        if barrier.outcome is not Outcome.DONE:
            left = self._end_everywhere(clients, incarnation) if barrier.outcome is Outcome.LOST else {}
            raise _failure(self._commit.job, barrier, done, silent, left)
        return done

    def _end_everywhere(self, clients: Mapping[str, AgentClient], incarnation: int) -> dict[str, str]:
        """After GO: a node that has heard of COMPLETE keeps its tree. Returns the nodes whose trees may
        still run, and why."""
        answers = ask_all(
            {
                (tree, node): partial(clients[node].end, self._commit.job, tree, timedelta(), incarnation)
                for tree, node in enumerate(self._nodes)
            }
        )
        return {node: a.message for (_, node), a in answers.items() if isinstance(a, CwError)}

    def _place(self, clients: Mapping[str, AgentClient]) -> Placement:
        facts = answers_of(ask_all({node: client.describe for node, client in clients.items()}))
        known = self._commit.summary.get("interfaces", {})
        old = [
            OldTree(
                manifest.node,
                known.get(manifest.node, {}),
                TreeReader(self._repository, manifest.ref).metadata["sockets"],
            )
            for manifest in self._commit.nodes
        ]
        former = (self._commit.summary.get("cluster_job") or {}).get("former_addresses", {})
        placement = place(old, self._nodes, interfaces_of(facts), former)
        self.report.trees = [
            {"tree": t.tree, "from": t.old_node, "to": t.node, "addresses": t.own} for t in placement.trees
        ]
        return placement

    def _begin(
        self,
        epoch: int,
        operation: str,
        tree: int,
        incarnation: int,
        placement: Placement,
        phases: tuple[Phase, ...],
    ) -> wire.Begin:
        manifest = self._commit.nodes[tree]
        records = self._commit.summary.get("records") or [None] * len(self._commit.nodes)
        redirect = self._request.redirect_to
        return wire.Begin(
            epoch=epoch,
            protocol=service.PROTOCOL,
            operation=operation,
            job=self._commit.job,
            repository=self._url,
            pause_limit_seconds=deadlines.HOLD.total_seconds(),
            tree=tree,
            restore=wire.BeginRestore(
                manifest=manifest.digest,
                manifest_size=manifest.size,
                snapshot=self._commit.snapshot,
                incarnation=incarnation,
                record=json.dumps(records[tree] or {}),
                own_addresses=placement.trees[tree].own,
                peer_addresses=placement.peers,
                endpoints=placement.endpoints,
                former_addresses=placement.former,
                files=self._request.files.value,
                redirect_to=str(redirect) if redirect else "",
                plan_only=phases is PLAN_ONLY,
            ),
        )


def _failure(
    job: str, barrier: Barrier, done: Conducted, silent: frozenset[str], left: Mapping[str, str]
) -> CwError:
    """What to tell the user: a refusal as it is, anything else as what it did to the restore.

    :param left: nodes that may still run a part of it.
    """
    worst = max(done.errors.values(), key=lambda error: error.exit_code, default=None)
    if worst is not None and barrier.phase is Phase.PLAN:
        return worst
    evidence = barrier.why[1:]
    for error in done.errors.values():
        evidence += [line for line in error.evidence if line not in evidence]
    evidence += [f"{node}: has not said that it ended what it had made" for node in sorted(silent)]
    cause = barrier.why[0] if barrier.why else "no reason is known"
    if left:
        evidence += [f"{node}: {why}" for node, why in left.items()]
        return RestoreUnsureError(job=job, nodes=", ".join(left), cause=cause, evidence=evidence)
    fix = worst.fix if worst is not None and worst.fix else "restore again."
    return RestoreAbortedError(cause=cause, fix=fix, evidence=evidence)
