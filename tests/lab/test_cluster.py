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
from tests.engine import Engine, eventually
from tests.lab.cluster import TRAIN, Cluster, by_step, options
from tests.lab.conftest import MakeLab

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


DEVICE = """
import os, time
os.open("/dev/fuse", os.O_RDWR)
print("has a device", flush=True)
while True: time.sleep(1)
"""
BESIDE = 'if [ "$NODE_RANK" = 1 ]; then "$0" -c "$DEVICE" & fi; exec "$0" -u "$@"'


def test_one_tree_that_can_not_be_taken(cluster: Cluster, undisturbed: dict[int, dict[str, str]]) -> None:
    """Refused on one node before anything stops, or failed there while all stand still: all train on."""
    if not Path("/dev/fuse").exists():
        os.mknod("/dev/fuse", 0o20600, os.makedev(10, 229))
    cluster.engine.environment["DEVICE"] = DEVICE
    cluster.train("n1,n2", "sh", "-c", BESIDE, sys.executable, run=("--nproc-per-node", "1"))
    eventually("it has a device", lambda: "has a device" in "".join(cluster.logs()))
    refused = cluster.engine.run("take", "train", "--json")
    assert (refused.code, refused.json["code"]) == (3, "preflight-refused"), refused.out
    assert "/dev/fuse" in "".join(refused.json["evidence"])
    assert "n2" in refused.json["message"]
    cluster.wait_steps(3)
    tried = cluster.engine.run("take", "train", "--force", "--json")
    assert tried.code == 4, tried.out
    assert "n2" in tried.json["message"]
    cluster.wait_steps(3)
    assert not cluster.engine.ok("list", "--json").json["snapshots"]
    assert cluster.finish() == undisturbed


def test_a_node_that_does_not_answer(cluster: Cluster, undisturbed: dict[int, dict[str, str]]) -> None:
    """Nothing was stopped on any."""
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


WORLD = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
names = (os.environ[f"{kind}_SOCKET_IFNAME"] for kind in ("GLOO", "NCCL", "TP"))
print("world", dist.get_rank(), dist.get_world_size(), *names, flush=True)
dist.barrier()
"""


@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_the_world_inside_a_job(engine: Engine, make_lab: MakeLab, launcher: str) -> None:
    """Two nodes with two ranks each; an interface that the user has chosen stays."""
    engine.environment["CW_SNAPSHOT_CLUSTER"] = str(make_lab(nodes=2, nics=2).cluster_file)
    engine.environment["NCCL_SOCKET_IFNAME"] = "eth1"
    script = engine.folder / "world.py"
    script.write_text(WORLD)
    words: list[str | Path] = ["--nproc-per-node", "2", "--", sys.executable, script]
    if launcher == "torchrun":
        words = ["--", Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", script]
    done = engine.run("run", "--job-id", "world", "--nodes", "n1,n2", "--wait", *words)
    printed = engine.ok("logs", "world").out
    assert done.code == 0, printed
    worlds = sorted(line.split()[2:] for line in printed.splitlines() if " world " in line)
    assert worlds == [["world", str(rank), "4", "eth0", "eth1", "eth0"] for rank in range(4)]


def test_eight_nodes(engine: Engine, make_lab: MakeLab) -> None:
    cluster = Cluster(engine, make_lab(nodes=8, nics=1), steps=60)
    reference = engine.folder / "reference"
    command = (sys.executable, "-u", TRAIN, *options(60))
    engine.job("reference", [*command, "--out", reference], "--nproc-per-node", "8")
    engine.ok("wait", "reference")
    cluster.train(",".join(f"n{n}" for n in range(1, 9)), run=("--nproc-per-node", "1"), world=8)
    report = cluster.take()
    assert len(report["nodes"]) == 8
    cluster.wait_steps(2)
    cluster.kill()
    cluster.restore("latest:train", ",".join(f"n{n}" for n in (3, 4, 5, 6, 7, 8, 1, 2)))
    cluster.wait_steps(2)
    assert cluster.finish() == by_step(reference)
