"""A training on the nodes of a lab, as a test sees it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from cw_snapshot.lab import namespaces
from cw_snapshot.lab.labs import Lab
from tests.engine import Engine, eventually, losses

TRAIN = Path(__file__).parents[2] / "examples" / "train_ddp.py"
STEPS = 400


def options(steps: int) -> tuple[str, ...]:
    """Of the training."""
    return ("--steps", str(steps), "--width", "128", "--workers", "1")


class Cluster:
    """A lab, and commands that know it."""

    def __init__(self, engine: Engine, lab: Lab, steps: int = STEPS) -> None:
        self.engine = engine
        self.steps = steps
        self.world = 2
        self.lab = lab
        engine.environment["CW_SNAPSHOT_CLUSTER"] = str(lab.cluster_file)
        self.out = engine.folder / "out"
        self.slow = engine.folder / "slow"
        self.slow.touch()

    def train(self, nodes: str, *launcher: str | Path, run: tuple[str, ...] = (), world: int = 2) -> None:
        self.world = world
        command = [*launcher, *(() if launcher else (sys.executable, "-u")), TRAIN]
        self.engine.ok(
            "run", "--job-id", "train", "--nodes", nodes, *run, "--",
            *command, "--out", self.out, *options(self.steps), "--slow-while", self.slow,
        )  # fmt: skip
        self.wait_steps(10)

    def wait_steps(self, more: int) -> None:
        """Wait until every rank has written so many lines more."""
        before = {rank: len(lines) for rank, lines in losses(self.out).items()}

        def done() -> bool:
            now = losses(self.out)
            return len(now) == self.world and all(
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
        """Let it train to its end; the loss of each step of each rank."""
        self.slow.unlink()
        eventually("it ends", lambda: all("final" in "".join(v[-1:]) for v in losses(self.out).values()), 120)
        return by_step(self.out)


def by_step(out: Path) -> dict[int, dict[str, str]]:
    """The loss of each step of each rank; a step that was computed twice has the same one."""
    found: dict[int, dict[str, str]] = {}
    for rank, lines in losses(out).items():
        for line in lines:
            step, value = line.split()[1:3]
            assert found.setdefault(rank, {}).setdefault(step, value) == value, f"rank {rank}, step {step}"
    return found
