"""A training on several nodes is taken at one instant, and comes back on other nodes bit-identical."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.lab import labs, namespaces
from cw_snapshot.lab.labs import Lab
from tests.engine import Engine, eventually, losses
from tests.lab.conftest import MakeLab

pytestmark = [pytest.mark.lab, pytest.mark.root]

TRAIN = Path(__file__).parents[2] / "examples" / "train_ddp.py"
STEPS = 400
OPTIONS = ("--steps", str(STEPS), "--width", "128", "--workers", "1")


class Cluster:
    """A lab, and commands that know it."""

    def __init__(self, engine: Engine, lab: Lab) -> None:
        self.engine = engine
        self.lab = lab
        engine.environment["CW_SNAPSHOT_CLUSTER"] = str(lab.cluster_file)
        self.out = engine.folder / "out"
        self.slow = engine.folder / "slow"
        self.slow.touch()

    def train(self, nodes: str, *launcher: str | Path, options: tuple[str, ...] = ()) -> None:
        command = [*launcher, *(() if launcher else (sys.executable, "-u")), TRAIN]
        self.engine.ok(
            "run", "--job-id", "train", "--nodes", nodes, *options, "--",
            *command, "--out", self.out, *OPTIONS, "--slow-while", self.slow,
        )  # fmt: skip
        self.wait_steps(10)

    def wait_steps(self, more: int) -> None:
        """Wait until every rank has written so many lines more."""
        before = {rank: len(lines) for rank, lines in losses(self.out).items()}

        def done() -> bool:
            now = losses(self.out)
            return len(now) == 2 and all(
                len(lines) >= before.get(rank, 0) + more for rank, lines in now.items()
            )

        try:
            eventually(f"{more} more steps", done, 60)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.logs()])) from error

    def logs(self) -> list[str]:
        """The last words of every tree."""
        paths = sorted((self.lab.folder / "nodes").glob("*/trees/*/jobs/*/*/output.log"))
        return [line for path in paths for line in (f"== {path}", *path.read_text().splitlines()[-12:])]

    def take(self, *options: str) -> Any:
        return self.engine.ok("take", "train", "--json", *options).json

    def kill(self) -> None:
        """Everything of the job at once, on all nodes."""
        nodes = [node.namespace for node in self.lab.plan.members]
        for pid, comm in namespaces.processes(nodes).items():
            if comm == "cw-init":
                os.kill(pid, signal.SIGKILL)
        eventually("it is gone", lambda: "python" not in self.jobs().values(), 20)

    def jobs(self) -> dict[int, str]:
        """Processes on the nodes but the agents."""
        agents = {
            int((self.lab.folder / "nodes" / node.name / "agent.pid").read_text())
            for node in self.lab.plan.members
        }
        nodes = [node.namespace for node in self.lab.plan.members]
        return {pid: comm for pid, comm in namespaces.processes(nodes).items() if pid not in agents}

    def restore(self, snapshot: str, nodes: str, *options: str) -> Any:
        return self.engine.ok("restore", snapshot, "--nodes", nodes, "--json", *options).json

    def finish(self) -> dict[int, dict[str, str]]:
        """Let it train to its end; the loss of each step of each rank, the same whoever wrote it."""
        self.slow.unlink()
        eventually("it ends", lambda: all("final" in "".join(v[-1:]) for v in losses(self.out).values()), 120)
        found: dict[int, dict[str, str]] = {}
        for rank, lines in losses(self.out).items():
            for line in lines:
                step, value = line.split()[1:3]
                assert found.setdefault(rank, {}).setdefault(step, value) == value, (
                    f"rank {rank}, step {step}"
                )
        return found


@pytest.fixture
def cluster(engine: Engine, make_lab: MakeLab) -> Iterator[Cluster]:
    yield Cluster(engine, make_lab(nodes=4, nics=2))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """The losses of a training of two ranks that nobody touches."""
    engine = Engine(tmp_path_factory.mktemp("undisturbed"))
    out = engine.folder / "out"
    try:
        command = [sys.executable, "-u", TRAIN, "--out", out, *OPTIONS]
        engine.job("reference", command, "--nproc-per-node", "2")
        assert engine.run("wait", "reference").code == 0, engine.log("reference")
    finally:
        engine.clean_up()
    return {rank: {x.split()[1]: x.split()[2] for x in lines} for rank, lines in losses(out).items()}


def test_a_training_comes_back_on_other_nodes(
    cluster: Cluster, undisturbed: dict[int, dict[str, str]]
) -> None:
    cluster.train("n1,n2", options=("--nproc-per-node", "1"))
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
    cluster.train("n1,n2", options=("--nproc-per-node", "1"))
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
    cluster.train("n1,n2", options=("--nproc-per-node", "1"))
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
