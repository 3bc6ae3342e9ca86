"""Jobs that run on several nodes: where their trees are, starting and ending them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from cw_snapshot.coordinator.cluster import Cluster, answers_of, ask_all
from cw_snapshot.coordinator.jobs import check_identity, now_text
from cw_snapshot.coordinator.start import StartRequest, is_torchrun, job_environment
from cw_snapshot.coordinator.state import make_private, read_json, write_json
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.errors import CwError, ExitCode, UsageError

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""By which gloo, NCCL and TensorPipe choose among the interfaces of a node."""
_DEFAULT_PORT = 29400
"""As torchrun's (torch/distributed/run.py); every job has its own namespaces of pids, not of the network."""


class ClusterJobRunsError(CwError):
    """Job {job} runs already, on {nodes}.

    Fix: `cw-snapshot stop {job}`; a new job can have another id.
    """

    exit_code = ExitCode.REFUSED


class NodesMayRunJobError(CwError):
    """An earlier incarnation of job {job} may run on nodes that don't answer; two would write to the same
    files.

    Fix: bring these nodes back; or, if you know that they are dead, name each with --assume-dead NODE.
    """

    exit_code = ExitCode.REFUSED


class NoJobInterfaceError(CwError):
    """Node {node} has no address that a job could use, but {interfaces}.

    Fix: name the interface with --interface.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job on several nodes; what is known of its newest incarnation."""

    id: str
    incarnation: int
    nodes: list[str]
    """Of each tree, in the order of NODE_RANK."""
    command: list[str]
    started: str
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    restored_from: str = ""
    former_addresses: dict[str, str] = field(default_factory=dict)
    """Addresses of earlier allocations, and where they lead now (coordinator/placement.py)."""


class ClusterJobs:
    """Their records in the state directory of the coordinator."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "cluster-jobs"

    def find(self, job: str) -> ClusterJob | None:
        data = read_json(self._folder / f"{check_identity('job id', job)}.json")
        return ClusterJob(**data) if data else None

    def save(self, record: ClusterJob) -> None:
        make_private(self._folder)
        write_json(self._folder / f"{record.id}.json", asdict(record))

    def put_back(self, job: str, before: ClusterJob | None) -> None:
        """Record what was known before an incarnation that did not come to life."""
        if before is not None:
            self.save(before)
        else:
            (self._folder / f"{job}.json").unlink(missing_ok=True)

    def all(self) -> list[ClusterJob]:
        files = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        return [ClusterJob(**read_json(path)) for path in files]


def refuse_if_running(
    known: ClusterJob | None, cluster: Cluster, job: str, assume_dead: Sequence[str] = ()
) -> None:
    """:raises ClusterJobRunsError, NodesMayRunJobError: an earlier incarnation runs, or may."""
    if known is None:
        return
    asked = {
        tree: node
        for tree, node in enumerate(known.nodes)
        if node in cluster.nodes and node not in assume_dead
    }
    with cluster.connect(list(asked.values())) as clients:
        answers = ask_all({t: partial(clients[node].job, job, t) for t, node in asked.items()})
    running = [
        asked[tree]
        for tree, answer in answers.items()
        if not isinstance(answer, CwError) and answer.state == wire.JobFacts.RUNNING
    ]
    if running:
        raise ClusterJobRunsError(job=job, nodes=", ".join(dict.fromkeys(running)))
    silent = [f"{asked[t]}: {a.message}" for t, a in answers.items() if isinstance(a, CwError)]
    silent += [
        f"{node}: is not in the cluster any more"
        for node in dict.fromkeys(known.nodes)
        if node not in cluster.nodes and node not in assume_dead
    ]
    if silent:
        raise NodesMayRunJobError(job=job, evidence=silent)


def trees_of(job: ClusterJob, cluster: Cluster) -> dict[int, wire.JobFacts | CwError]:
    """How each tree of a job stands, or why its node does not tell."""
    with cluster.connect(job.nodes) as clients:
        return ask_all({t: partial(clients[node].job, job.id, t) for t, node in enumerate(job.nodes)})


def end(job: ClusterJob, cluster: Cluster, grace: timedelta) -> dict[int, wire.JobFacts]:
    """End every tree of a job, all at the same time.

    :param grace: between SIGTERM and SIGKILL.
    :raises NodeUnreachableError: a node does not answer; the others have ended theirs.
    """
    with cluster.connect(job.nodes) as clients:
        questions = {t: partial(clients[node].end, job.id, t, grace) for t, node in enumerate(job.nodes)}
        return answers_of(ask_all(questions))


def job_addresses(node: str, facts: wire.NodeFacts, interface: str | None) -> tuple[str, list[str]]:
    """The interface of a node that a job uses, and its addresses, IPv4 first.

    :param interface: None for the first that is not for management.
    """
    found = {i.name: list(i.addresses) for i in facts.interfaces}
    if interface is None:
        interface = next((name for name in found if not name.startswith("mgmt")), None)
    if interface is None or not found.get(interface):
        raise NoJobInterfaceError(node=node, interfaces=", ".join(found) or "none")
    return interface, sorted(found[interface], key=lambda address: ":" in address)


def start(
    cluster: Cluster,
    jobs: ClusterJobs,
    request: StartRequest,
    nodes: Sequence[str],
    environment: Mapping[str, str],
    interface: str | None = None,
) -> ClusterJob:
    """Start one tree on each node. When one can't be started, the others are ended.

    :param environment: the caller's.
    :param interface: that the job uses on every node; None for the first that is not for management.
    """
    if len(set(nodes)) != len(nodes):
        raise UsageError(what="a node is named twice in --nodes")
    if request.nproc_per_node is not None and is_torchrun(request.command):
        raise UsageError(what="--nproc-per-node starts the ranks by itself; give it to torchrun instead")
    known = jobs.find(request.job)
    refuse_if_running(known, cluster, request.job)
    with cluster.connect(nodes) as clients:
        facts = answers_of(ask_all({node: client.describe for node, client in clients.items()}))
        chosen = {node: job_addresses(node, facts[node], interface) for node in nodes}
        record = ClusterJob(
            id=request.job,
            incarnation=known.incarnation + 1 if known else 0,
            nodes=list(nodes),
            command=list(request.command),
            started=now_text(),
            user=request.user or "",
            labels=dict(request.labels),
        )
        jobs.save(record)
        master = chosen[nodes[0]][1][0]
        answers = ask_all(
            {
                tree: partial(
                    clients[node].start,
                    _start_request(request, record, tree, master, chosen[node][0], environment),
                )
                for tree, node in enumerate(nodes)
            }
        )
        if any(isinstance(answer, CwError) for answer in answers.values()):
            started = [t for t, answer in answers.items() if not isinstance(answer, CwError)]
            ask_all({t: partial(clients[nodes[t]].end, request.job, t, timedelta()) for t in started})
            answers_of(answers)
    return record


def _start_request(
    request: StartRequest,
    record: ClusterJob,
    rank: int,
    master: str,
    interface: str,
    environment: Mapping[str, str],
) -> wire.StartRequest:
    job = job_environment(
        environment, nnodes=len(record.nodes), node_rank=rank, address=master, port=_DEFAULT_PORT
    )
    for variable in _INTERFACE_VARIABLES:
        job.setdefault(variable, interface)
    return wire.StartRequest(
        job=request.job,
        command=request.command,
        environment=job,
        folder=str(request.folder.absolute()),
        user=request.user or "",
        labels=request.labels,
        allow_io_uring=request.allow_io_uring,
        incarnation=record.incarnation,
        nproc_per_node=request.nproc_per_node or 0,
        node_rank=rank,
        nnodes=len(record.nodes),
    )
