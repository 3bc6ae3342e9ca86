"""A cluster with a node to which things happen, and a command that is struck at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.lab import agents, namespaces
from cw_snapshot.lab.plan import MANAGEMENT
from cw_snapshot.snapshot import shadows, work_folder
from tests.engine import Engine, eventually
from tests.lab.cluster import Cluster
from tests.lab.conftest import MakeLab
from tests.lab.faults import COMMANDS
from tests.root.test_kill_table import sockets_in_repair, stopped

FAULTS = Path(__file__).with_name("faults.py")
STEPS = 2500
NODE = "n2"
"""Where things happen."""


class Faulty(Cluster):
    """A cluster with a node to which things happen."""

    def __init__(
        self, engine: Engine, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS
    ) -> None:
        self.faults = engine.folder / "faults"
        self.faults.touch()
        monkeypatch.setattr(agents, "_AGENT", (str(FAULTS), "agent", str(self.faults)))
        super().__init__(engine, make_lab(nodes=2, nics=1), steps)

    def strike(self, victim: str, side: str, phase: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command during which something happens: to its own process or to a node."""
        at_command = victim.partition("=")[0] in COMMANDS
        done = self.faults.with_suffix(".done")
        done.unlink(missing_ok=True)
        command = [sys.executable, "-m", "cw_snapshot.cli"]
        if at_command:
            command = [sys.executable, str(FAULTS), "command", victim, side, phase]
        else:
            self.faults.write_text(f"{NODE} {victim} {side} {phase}")
        run = subprocess.run(
            [*command, *words],
            env=self.engine.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if not at_command:
            assert not self.faults.read_text(), f"{victim} {side} {phase}: never reached\n{run.stderr}"
            if done.read_text() == "nobody":
                assert run.returncode == 0, run.stdout
        return run

    def mend(self, victim: str) -> None:
        """Put right what an operator or a supervisor would."""
        node = self.lab.node(NODE)
        if victim == "cut":
            namespaces.batch([f"link set {MANAGEMENT} up"], namespace=node.namespace)
        elif victim == "agent-hang":
            os.kill(agents.running(self.lab.folder, node) or 0, signal.SIGCONT)
        elif victim in ("agent", "all"):
            eventually("the agent is gone", lambda: agents.running(self.lab.folder, node) is None)
        agents.start_missing(self.lab.plan, self.lab.folder)

    @property
    def _namespaces(self) -> list[str]:
        return [node.namespace for node in self.lab.plan.members]

    def left(self) -> list[str]:
        """What operations have left on the nodes."""
        found = []
        for name in self._namespaces:
            tables = namespaces.run([*namespaces.entering(name), "nft", "list", "tables"])
            found += [f"{name}: {line}" for line in tables.splitlines() if "CRIU-" in line]
        here = namespaces.processes(self._namespaces)
        found += [f"shadow {pid}" for pid in shadows.find_shadows() if pid in here]
        found += [f"{pid} {comm}" for pid, comm in here.items() if comm in ("criu", "cw-guard", "cw-keeper")]
        found += [f"worker {pid}" for pid in here if _is_worker(pid)]
        operations = {
            path.name for path in self.lab.folder.glob("nodes/*/operations/*") if path.name.startswith("20")
        }
        for folder in work_folder.abandoned_folders():
            if any(name.rpartition(".")[0] in folder.name for name in operations):
                found.append(str(folder))
        return found

    def assert_clean(self) -> None:
        try:
            eventually("nothing is left", lambda: not self.left(), 60)
        except AssertionError as error:
            raise AssertionError(f"left: {self.left()}") from error

    def ranks(self) -> list[int]:
        """Processes of the job."""
        return [pid for pid, comm in namespaces.processes(self._namespaces).items() if comm == "python"
                and not _is_ours(pid)]  # fmt: skip

    def assert_trains_on(self, row: str) -> None:
        self.assert_clean()
        pids = self.ranks()
        eventually(f"{row}: no task is stopped", lambda: not stopped(pids), 30)
        eventually(f"{row}: no socket is in repair mode", lambda: not sockets_in_repair(pids), 20)
        self.wait_steps(1)

    def hang(self, phase: str, *words: str) -> subprocess.Popen[Any]:
        """A command that has stopped when a phase was done on the first node."""
        command = [sys.executable, str(FAULTS), "command", "hang", "after", phase, *words]
        process = self.engine.other_process(
            command, env=self.engine.environment, stdout=subprocess.PIPE, text=True
        )
        eventually("it hangs", lambda: process.poll() is not None or stopped([process.pid]), 60)
        assert process.poll() is None
        return process

    def restore_fails(self, victim: str, side: str, phase: str) -> None:
        """A restore to which something happens; then nothing of it is alive, or all of it."""
        row = f"{victim} {side} {phase}"
        words = ("restore", "latest:train", "--nodes", "n2,n1", "--json")
        if victim == "hang-command":
            command = self.hang(phase, *words)
            eventually(f"{row}: nothing is alive", lambda: not self.ranks(), 60)
            command.send_signal(signal.SIGCONT)
            done = subprocess.CompletedProcess(words, command.wait(), command.stdout.read(), "")
        else:
            done = self.strike(victim, side, phase, *words)
        if victim == "cut":
            eventually(f"{row}: nothing is alive", lambda: not self.ranks(), 60)
        self.mend(victim)
        self.assert_clean()
        assert done.returncode in (0, 4, -9), f"{row}: {done.stdout}{done.stderr}"
        if done.returncode == 0 or (victim, side, phase) == ("kill", "after", "complete"):
            self.wait_steps(1)
            self.kill()
            return
        if done.returncode == 4 and json.loads(done.stdout)["code"] == "restore-unsure":
            assert NODE in done.stdout
            self.engine.ok("stop", "train", "--grace", "0s")
        eventually(f"{row}: nothing is alive: {self.ranks()}", lambda: not self.ranks(), 30)

    def snapshots(self) -> int:
        return len(self.engine.ok("list", "--json").json["snapshots"])


def _command_line(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _is_ours(pid: int) -> bool:
    words = _command_line(pid)
    return bytes(FAULTS) in words


def _is_worker(pid: int) -> bool:
    return _is_ours(pid) and b"worker" in _command_line(pid)
