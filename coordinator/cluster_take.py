"""Taking a job on several nodes: all its trees at one instant, one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.barrier import TAKE, Barrier, Outcome, Phase
from cw_snapshot.coordinator.cluster import AgentClient, Cluster, answers_of, ask_all
from cw_snapshot.coordinator.cluster_jobs import ClusterJob
from cw_snapshot.coordinator.conduct import Conducted, Conductor, OnProgress
from cw_snapshot.coordinator.epochs import Epochs
from cw_snapshot.coordinator.expectation import repository_name
from cw_snapshot.coordinator.jobs import check_identity
from cw_snapshot.coordinator.node_links import NodeLinks
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.coordinator.placement import member_names
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import InterruptedBySignalError, ignore_signals, interruptible
from cw_snapshot.coordinator.state import exclusive
from cw_snapshot.coordinator.take import SnapshotLostError, TakeAbortedError
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import service
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import NodeManifest
from cw_snapshot.storage.repository import Repository


@dataclass(frozen=True, slots=True)
class ClusterTakeRequest:
    """What `cw-snapshot take` was asked for, of a job on several nodes."""

    job: ClusterJob
    stop: bool = False
    name: str | None = None
    force: bool = False


@dataclass(slots=True)
class ClusterTakeReport:
    """What such a take has to tell."""

    job: str
    snapshot: str = ""
    nodes: list[str] = field(default_factory=list)
    pause_seconds: float | None = None
    """Of the node that stood still for longest; None with `--stop`."""
    node_times: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds after its own stop at which each node reached each point of the pause."""
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds from the beginning until all nodes had done a phase."""
    node_facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    durable_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What the user should know: parts that `--stop` could not end."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def take(
    request: ClusterTakeRequest,
    cluster: Cluster,
    repository: Repository,
    url: str,
    settings: Settings,
    progress: OnProgress,
) -> ClusterTakeReport:
    """Take a job on all its nodes. It runs on, unless `request.stop`.

    :param url: of the repository; every node opens it by this.
    :raises TakeAbortedError, SnapshotLostError, RemoteError: their exit codes tell how the job stands.
    """
    job = request.job
    if request.name is not None:
        check_identity("snapshot name", request.name)
        repository.refuse_name(request.name)
    locks = settings.state_dir / "cluster-jobs" / f"{job.id}.lock"
    details = {
        "options": {"stop": request.stop, "name": request.name, "force": request.force},
        "repository": repository_name(settings),
        "settings": settings.to_json(),
    }
    report = ClusterTakeReport(job.id, nodes=job.nodes)
    with (
        exclusive(locks, job.id),
        interruptible(),
        operation(settings, "take", job.id, details, nodes=job.nodes) as op,
    ):
        try:
            _take(request, cluster, repository, url, settings, progress, op, report)
        except InterruptedBySignalError as error:
            raise TakeAbortedError(cause=error.message, fix="take again.") from error
        finally:
            op.result = report.to_json()
    if op.unwritten:
        report.notes.append(op.unwritten)
    return report


def _take(
    request: ClusterTakeRequest,
    cluster: Cluster,
    repository: Repository,
    url: str,
    settings: Settings,
    progress: OnProgress,
    op: Operation,
    report: ClusterTakeReport,
) -> None:
    job = request.job
    begun = time.monotonic()
    epoch = Epochs(settings.state_dir / "epochs.json").next(job.id)
    members = dict(zip(member_names(job.nodes), job.nodes, strict=True))
    barrier = Barrier(epoch, members, TAKE)
    begins = {
        member: wire.Begin(
            epoch=epoch,
            protocol=service.PROTOCOL,
            operation=op.id,
            job=job.id,
            repository=url,
            pause_limit_seconds=settings.max_pause.total_seconds(),
            take=wire.BeginTake(stop=request.stop, force=request.force),
            tree=tree,
        )
        for tree, member in enumerate(members)
    }

    def told(node: str, phase: str, done: int, total: int) -> None:
        op.progress(done, total, node)
        progress(node, phase, done, total)

    with cluster.connect(job.nodes) as clients:
        facts = answers_of(ask_all({node: client.describe for node, client in clients.items()}))
        links = NodeLinks(
            {member: clients[node] for member, node in members.items()},
            begins,
            LocalBroker(repository.load_index()),
        )
        conductor = Conductor(barrier, links, deadlines.take_phases(settings.max_pause), told)
        try:
            done = conductor.run(before=op.phase)
            if barrier.outcome is Outcome.DONE:
                ignore_signals()
                op.phase("commit")
                _commit(request, repository, done, report, interfaces_of(facts))
                links.finish(durable=True)
        finally:
            ignore_signals()
            silent = conductor.settle(deadlines.GIVE_UP)
            report.phase_seconds = conductor.result.times
        if barrier.outcome is not Outcome.DONE:
            raise _failure(barrier, done, silent)
        if request.stop:
            report.notes = _end_rest(clients, job, {tree for tree, m in enumerate(members) if m in silent})
    report.durable_seconds = round(time.monotonic() - begun, 3)


def _end_rest(clients: Mapping[str, AgentClient], job: ClusterJob, trees: set[int]) -> list[str]:
    """End trees that did not say that they have ended. The snapshot is durable: no failure any more."""
    nodes = {tree: job.nodes[tree] for tree in trees}
    answers = ask_all(
        {
            tree: partial(clients[node].end, job.id, tree, timedelta(), job.incarnation)
            for tree, node in nodes.items()
        }
    )
    return [
        f"the tree on {nodes[tree]} may still run, and goes on without the others: {answer.message}. "
        f"`cw-snapshot stop {job.id}` ends it"
        for tree, answer in answers.items()
        if isinstance(answer, CwError)
    ]


def interfaces_of(facts: Mapping[str, wire.NodeFacts]) -> dict[str, dict[str, list[str]]]:
    """Addresses of every node by interface; those for management are no job's."""
    return {
        node: {i.name: list(i.addresses) for i in found.interfaces if not i.name.startswith("mgmt")}
        for node, found in facts.items()
    }


def _commit(
    request: ClusterTakeRequest,
    repository: Repository,
    done: Conducted,
    report: ClusterTakeReport,
    interfaces: Mapping[str, Mapping[str, list[str]]],
) -> None:
    job = request.job
    members = member_names(job.nodes)
    opened, pages = done.facts[Phase.OPEN], done.facts[Phase.PAGES]
    report.node_times = {member: facts["times"] for member, facts in done.facts[Phase.GO].items()}
    report.node_facts = {member: {**opened[member], **pages[member]} for member in members}
    if not request.stop:
        report.pause_seconds = max(times["went"] for times in report.node_times.values())
    stats = pages[members[0]]["stats"]
    summary = {
        "take": {
            "pause_seconds": report.pause_seconds,
            "node_times": report.node_times,
            "pages": {key: sum(pages[member]["stats"][key] for member in members) for key in stats},
        },
        "processes": sum(opened[member]["processes"] for member in members),
        "cluster_job": asdict(job),
        "interfaces": interfaces,
        "records": [opened[member]["record"] for member in members],
        "job": None,
    }
    commit = repository.commit(
        job=job.id,
        incarnation=job.incarnation,
        nodes=[
            NodeManifest(node, pages[member]["manifest"], pages[member]["size"])
            for member, node in zip(members, job.nodes, strict=True)
        ],
        indexes=[pages[member]["index"] for member in members if pages[member]["index"]],
        name=request.name,
        summary=summary,
    )
    report.snapshot = commit.snapshot


def _failure(barrier: Barrier, done: Conducted, silent: frozenset[str]) -> CwError:
    """What to tell the user. The worst error of any node decides how the job stands."""
    evidence = barrier.why[1:]
    evidence += [f"{node}: has not said that it ended its part" for node in sorted(silent)]
    worst = max(done.errors.values(), key=lambda error: error.exit_code, default=None)
    if worst is not None and (
        worst.exit_code is ExitCode.HARMED
        or (barrier.phase is Phase.OPEN and worst.exit_code is ExitCode.REFUSED)
    ):
        return worst
    for error in done.errors.values():
        evidence += [line for line in error.evidence if line not in evidence]
    cause = barrier.why[0] if barrier.why else "no reason is known"
    fix = worst.fix if worst is not None and worst.fix else "take again."
    kind = SnapshotLostError if barrier.outcome is Outcome.LOST else TakeAbortedError
    return kind(cause=cause, fix=fix, evidence=evidence)
