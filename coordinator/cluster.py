"""The nodes of a cluster, and calling their agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc

from cw_snapshot.coordinator.job_logs import LogBlock
from cw_snapshot.coordinator.tls import Identity
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import remote_errors, service
from cw_snapshot.errors import CwError, ExitCode

SCHEMA = "cw-snapshot/cluster/1"
CALL = timedelta(seconds=10)
"""For a call that an agent answers at once."""


class ClusterFileError(CwError):
    """The cluster file {path} can't be used: {why}

    Fix: `cw-snapshot lab up` writes one for a lab; docs/nodes.md tells its form.
    """

    exit_code = ExitCode.USAGE


class NoClusterError(CwError):
    """No cluster was named.

    Fix: set CW_SNAPSHOT_CLUSTER to a cluster file; `cw-snapshot lab up` prints that of a lab.
    """

    exit_code = ExitCode.USAGE


class NodeUnknownError(CwError):
    """The cluster has no node {node}; it has {nodes}.

    Fix: name one of these.
    """

    exit_code = ExitCode.NOT_FOUND


class NodeUnreachableError(CwError):
    """The agent of node {node} at {address} does not answer: {why}

    Fix: is it up, and the network to it? `cw-snapshot agent` must run there.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the agents are, and who we are for them."""

    nodes: Mapping[str, str]
    """Name of each node, and HOST:PORT of its agent."""
    identity: Identity

    @classmethod
    def load(cls, path: Path) -> Cluster:
        """:raises ClusterFileError: it is none."""
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            if data["schema"] != SCHEMA:
                raise ClusterFileError(path=path, why=f"its schema is {data['schema']}, not {SCHEMA}")
            names = ("authority", "certificate", "key")
            identity = Identity(*(path.parent / str(data[name]) for name in names))
            return cls({str(k): str(v) for k, v in data["nodes"].items()}, identity)
        except OSError as error:
            raise ClusterFileError(path=path, why=error.strerror) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClusterFileError(path=path, why=f"{type(error).__name__}: {error}") from error

    def address(self, node: str) -> str:
        """:raises NodeUnknownError: there is no such node."""
        if node not in self.nodes:
            raise NodeUnknownError(node=node, nodes=", ".join(self.nodes))
        return self.nodes[node]

    @contextmanager
    def connect(self, nodes: Sequence[str]) -> Iterator[dict[str, AgentClient]]:
        """Channels to the agents of some nodes."""
        addresses = {node: self.address(node) for node in dict.fromkeys(nodes)}
        credentials = self.identity.client()
        clients = {node: AgentClient(node, address, credentials) for node, address in addresses.items()}
        try:
            yield clients
        finally:
            for client in clients.values():
                client.close()


class AgentClient:
    """The agent of one node."""

    def __init__(self, node: str, address: str, credentials: grpc.ChannelCredentials) -> None:
        self.node = node
        self.address = address
        # The certificate must be the node's, not just anybody's of the same authority.
        name = ("grpc.ssl_target_name_override", node)
        self._channel = grpc.secure_channel(address, credentials, options=[*service.KEEPALIVE, name])

    def describe(self) -> wire.NodeFacts:
        facts: wire.NodeFacts = self._call("Describe", wire.DescribeRequest(), CALL)
        return facts

    def start(self, request: wire.StartRequest) -> wire.JobFacts:
        facts: wire.JobFacts = self._call("Start", request, CALL)
        return facts

    def job(self, job: str, tree: int) -> wire.JobFacts:
        facts: wire.JobFacts = self._call("Job", wire.JobQuery(job=job, tree=tree), CALL)
        return facts

    def log(self, job: str, tree: int, offset: int, tail: int | None) -> LogBlock:
        """:param tail: from the beginning of the last so many lines; None for `offset`."""
        request = wire.LogQuery(job=job, tree=tree, offset=offset, tail_lines=tail)
        found: wire.LogBlock = self._call("Log", request, CALL)
        return LogBlock(found.data, found.offset, found.ended, found.path)

    def end(self, job: str, tree: int, grace: timedelta, incarnation: int = 0) -> wire.JobFacts:
        """:param incarnation: that may be ended; 0 for whichever there is."""
        request = wire.EndRequest(
            job=job, grace_seconds=grace.total_seconds(), tree=tree, incarnation=incarnation
        )
        facts: wire.JobFacts = self._call("End", request, CALL + 2 * grace)
        return facts

    def _call(self, name: str, request: Any, limit: timedelta) -> Any:
        """:raises NodeUnreachableError: there is no answer.
        :raises RemoteError: what went wrong over there."""
        try:
            return service.call(self._channel, name)(request, timeout=limit.total_seconds())
        except grpc.RpcError as error:
            raise self.told(error) from error

    def operate(self, messages: Iterator[wire.ToNode]) -> Iterator[wire.FromNode]:
        """:raises grpc.RpcError: while iterating; :meth:`told` makes it one of ours."""
        answers: Iterator[wire.FromNode] = service.operate(self._channel)(messages)
        return answers

    def told(self, error: grpc.RpcError) -> CwError:
        """What a failed call says, as an error of ours."""
        call: Any = error  # each error that a call raises is the call too (grpc.Call)
        details = call.details() or ""
        if call.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return remote_errors.from_text(details, self.node)
        return NodeUnreachableError(node=self.node, address=self.address, why=details)

    def close(self) -> None:
        self._channel.close()


_K = TypeVar("_K")
_T = TypeVar("_T")


def ask_all(questions: Mapping[_K, Callable[[], _T]]) -> dict[_K, _T | CwError]:
    """Ask many at the same time; an answer or an error of each."""

    def one(question: Callable[[], _T]) -> _T | CwError:
        try:
            return question()
        except CwError as error:
            return error

    with ThreadPoolExecutor(max(1, len(questions))) as pool:
        return dict(zip(questions, pool.map(one, questions.values()), strict=True))


def answers_of(answers: Mapping[_K, _T | CwError]) -> dict[_K, _T]:
    """The answers of :func:`ask_all`, or the first error among them."""
    found = {}
    for key, answer in answers.items():
        if isinstance(answer, CwError):
            raise answer
        found[key] = answer
    return found
