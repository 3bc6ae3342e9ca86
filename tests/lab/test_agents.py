"""Agents: who may command them, and what becomes of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from cw_snapshot.coordinator import agent, tls
from cw_snapshot.coordinator.agent import NotCoordinatorError
from cw_snapshot.coordinator.cluster import AgentClient, Cluster, ClusterFileError, NodeUnreachableError
from cw_snapshot.coordinator.tls import Identity
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import service
from cw_snapshot.coordinator.wire.remote_errors import RemoteError
from cw_snapshot.lab import agents, certificates, labs
from cw_snapshot.lab.labs import Lab
from tests.engine import eventually
from tests.lab.conftest import MakeLab

pytestmark = [pytest.mark.lab]


def identity(lab: Lab, name: str, authority: Lab | None = None) -> Identity:
    folder = agents.certificates_folder(lab.folder)
    trusted = agents.certificates_folder((authority or lab).folder)
    return Identity(trusted / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def client(lab: Lab, node: str, who: Identity) -> AgentClient:
    return AgentClient(node, f"{lab.node(node).address}:{agents.PORT}", who.client())


def test_the_coordinator_is_answered(make_lab: MakeLab) -> None:
    lab = make_lab()
    cluster = Cluster.load(lab.cluster_file)
    with cluster.connect(["n1", "n2"]) as clients:
        facts = {node: one.describe() for node, one in clients.items()}
    assert [found.node for found in facts.values()] == ["n1", "n2"]
    by_name = {i.name: list(i.addresses) for i in facts["n2"].interfaces}
    for port in lab.node("n2").nics:
        assert by_name[port.nic] == [str(port.ipv4.ip), str(port.ipv6.ip)]


def test_the_name_is_the_same_on_both_sides() -> None:
    assert certificates.COORDINATOR == tls.COORDINATOR


def test_a_node_does_not_command_another(make_lab: MakeLab) -> None:
    """Its certificate is for servers."""
    lab = make_lab()
    with pytest.raises(NodeUnreachableError):
        client(lab, "n2", identity(lab, "n1")).describe()


class Caller:
    """The context of a call by somebody whose certificate the authority has signed for any use."""

    def __init__(self, *names: bytes) -> None:
        self.names = names

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_common_name": self.names}


def test_only_the_coordinator_s_name_may_command() -> None:
    check: Any = agent._check_caller
    check(Caller(b"cw-snapshot-coordinator"))
    for names in ((), (b"n1",), (b"cw-snapshot-coordinator2",)):
        with pytest.raises(NotCoordinatorError):
            check(Caller(*names))


def test_others_are_not_answered(make_lab: MakeLab) -> None:
    lab, other = make_lab(suffix="a"), make_lab(suffix="b")
    with pytest.raises(NodeUnreachableError):
        client(lab, "n1", identity(other, "coordinator", authority=lab)).describe()
    plain = grpc.insecure_channel(f"{lab.node('n1').address}:{agents.PORT}")
    with plain as channel, pytest.raises(grpc.RpcError):
        service.call(channel, "Describe")(wire.DescribeRequest(), timeout=5)


def test_an_agent_under_a_wrong_name(make_lab: MakeLab) -> None:
    """n2 answers at the address that we have for n1: it is not taken for n1."""
    lab = make_lab()
    wrong = AgentClient(
        "n1", f"{lab.node('n2').address}:{agents.PORT}", identity(lab, "coordinator").client()
    )
    with pytest.raises(NodeUnreachableError):
        wrong.describe()


def test_operations_of_others_are_refused(make_lab: MakeLab) -> None:
    lab = make_lab()
    stranger = client(lab, "n1", identity(lab, "n2"))
    begin = wire.ToNode(begin=wire.Begin(epoch=1, operation="x", job="j", take=wire.BeginTake()))
    with pytest.raises(grpc.RpcError) as refused:
        list(stranger.operate(iter([begin])))
    assert isinstance(stranger.told(refused.value), NodeUnreachableError)


def test_a_dead_agent_is_started_again(make_lab: MakeLab) -> None:
    lab = make_lab()
    pid = agents.running(lab.folder, lab.node("n1"))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually("it is gone", lambda: agents.running(lab.folder, lab.node("n1")) is None)
    labs.up(lab.name, 2, 2)
    assert client(lab, "n1", identity(lab, "coordinator")).describe().node == "n1"
    assert agents.running(lab.folder, lab.node("n2")) is not None


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "x", "nodes": {}}', "[]"])
def test_a_cluster_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(ClusterFileError):
        Cluster.load(path)
    with pytest.raises(ClusterFileError):
        Cluster.load(tmp_path / "missing")


def test_an_operation_of_a_newer_coordinator_is_refused(make_lab: MakeLab) -> None:
    begin = wire.Begin(epoch=1, operation="op", job="j", protocol=service.PROTOCOL + 1)
    with Cluster.load(make_lab(nodes=1, nics=1).cluster_file).connect(["n1"]) as clients:
        with pytest.raises(grpc.RpcError) as failed:
            list(clients["n1"].operate(iter([wire.ToNode(begin=begin)])))
        error = clients["n1"].told(failed.value)
    assert isinstance(error, RemoteError)
    assert (error.code, error.exit_code) == ("newer-protocol", 3)
    assert "install the same version" in error.fix
