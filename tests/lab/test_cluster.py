"""A training on several nodes is taken at one instant, and comes back on other nodes bit-identical."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from cw_snapshot.coordinator.jobs import tree_store
from cw_snapshot.coordinator.state import exclusive
from cw_snapshot.lab import labs, namespaces
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.root]


def test_a_training_comes_back_on_other_nodes(
    cluster: Cluster, undisturbed: dict[int, dict[str, str]]
) -> None:
    cluster.train("n1,n2", run=("--nproc-per-node", "1"))
    report = cluster.take()
    assert report["nodes"] == ["n1", "n2"]
    assert report["pause_seconds"] < 5
    cluster.wait_steps(5)
    running = cluster.engine.run("restore", "latest:train", "--nodes", "n3,n4", "--json")
    assert running.code == 3
    assert running.json["code"] == "cluster-job-runs"
    cluster.kill()
    plan = cluster.restore("latest:train", "n3,n4", "--plan")
    assert [(tree["from"], tree["to"]) for tree in plan["trees"]] == [("n1", "n3"), ("n2", "n4")]
    assert not cluster.jobs()
    # The source is gone for good.
    namespaces.end_processes([cluster.lab.node(name).namespace for name in ("n1", "n2")], labs._PATIENCE)
    again = cluster.engine.run("restore", "latest:train", "--nodes", "n3,n4", "--json")
    assert again.json["code"] == "nodes-may-run-job", "their agents can't be asked"
    restored = cluster.restore("latest:train", "n3,n4", "--assume-dead", "n1", "--assume-dead", "n2")
    assert restored["incarnation"] == 1
    cluster.wait_steps(5)
    assert cluster.finish() == undisturbed


def test_generations_and_every_mapping(cluster: Cluster, undisturbed: dict[int, dict[str, str]]) -> None:
    """Onto other nodes, two trees onto one node, apart again, and a swap; then the first snapshot again."""
    cluster.train("n1,n2", run=("--nproc-per-node", "1"))
    first = cluster.take()["snapshot"]
    for nodes in ("n3,n4", "n2", "n2,n3", "n3,n2"):
        cluster.kill()
        cluster.restore("latest:train", nodes)
        cluster.wait_steps(5)
        cluster.take()
        cluster.wait_steps(2)
    cluster.kill()
    cluster.restore(first, "n4,n1")
    cluster.wait_steps(5)
    assert cluster.finish() == undisturbed


def test_torchrun_over_nodes(cluster: Cluster, undisturbed: dict[int, dict[str, str]]) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    cluster.train("n1,n2", torchrun, "--nproc-per-node", "1")
    cluster.take()
    cluster.wait_steps(2)
    cluster.kill()
    cluster.restore("latest:train", "n4,n3")
    cluster.wait_steps(5)
    assert cluster.finish() == undisturbed


def test_one_tree_that_can_not_be_taken(cluster: Cluster, undisturbed: dict[int, dict[str, str]]) -> None:
    """Refused on one node: nothing was stopped on any."""
    cluster.train("n1,n2", run=("--nproc-per-node", "1"))
    agent = int((cluster.lab.folder / "nodes" / "n2" / "agent.pid").read_text())
    os.kill(agent, signal.SIGSTOP)
    try:
        lost = cluster.engine.run("take", "train", "--json")
    finally:
        os.kill(agent, signal.SIGCONT)
    assert lost.code == 4, lost.out
    cluster.wait_steps(5)
    assert cluster.take()["nodes"] == ["n1", "n2"]
    assert cluster.finish() == undisturbed


def test_a_tree_on_which_an_operation_is_not_over(cluster: Cluster) -> None:
    """One whose command is gone, and which a node still undoes: no other begins there."""
    cluster.train("n1,n2", run=("--nproc-per-node", "1"))
    store = tree_store(cluster.lab.folder / "nodes" / "n2", 1)
    with exclusive(store.lock_path("train"), "train"):
        refused = cluster.engine.run("take", "train", "--json")
        assert refused.code == 3, refused.out
        assert refused.json["code"] == "busy"
        cluster.wait_steps(2)
    cluster.take()
