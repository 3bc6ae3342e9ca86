"""Whoever is killed on whichever side, whenever: all ranks train on, or nothing is left anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator.barrier import RESTORE, TAKE
from cw_snapshot.lab import agents, namespaces
from cw_snapshot.lab.plan import MANAGEMENT
from cw_snapshot.snapshot import shadows, work_folder
from tests.engine import Engine, eventually
from tests.lab.cluster import Cluster
from tests.lab.conftest import Losses, MakeLab, undisturbed_losses
from tests.root.test_kill_table import sockets_in_repair, stopped

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.timeout(900)]

FAULTS = Path(__file__).with_name("faults.py")
STEPS = 2500
NODE = "n2"
"""Where things happen."""
SIDES = ("before", "after")
VICTIMS = ("worker", "agent", "guard", "criu", "kill")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)


class Faulty(Cluster):
    """A cluster with a node to which things happen."""

    def __init__(self, engine: Engine, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults = engine.folder / "faults"
        self.faults.touch()
        monkeypatch.setattr(agents, "_AGENT", (str(FAULTS), "agent", str(self.faults)))
        super().__init__(engine, make_lab(nodes=2, nics=1), STEPS)

    def strike(self, victim: str, side: str, phase: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command during which something happens: to its own process or to a node."""
        at_command = victim in ("kill", "hang-command")
        done = self.faults.with_suffix(".done")
        done.unlink(missing_ok=True)
        command = [sys.executable, "-m", "cw_snapshot.cli"]
        if at_command:
            command = [sys.executable, str(FAULTS), "command", victim.removesuffix("-command"), side, phase]
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


@pytest.fixture
def faulty(engine: Engine, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    yield Faulty(engine, make_lab, monkeypatch)


TAKE_PHASES = [phase.value for phase in TAKE]
EVERY_MOMENT = [False, pytest.param(True, marks=pytest.mark.slow)]
"""The usual run takes every other moment, of each victim other ones; the slow tests take all."""


def moments(victim: str, phases: Sequence[str], *, every: bool) -> Iterator[tuple[str, str]]:
    shift = VICTIMS.index(victim)
    for number, moment in enumerate(product(phases, SIDES)):
        if every or (number + number // 2 + shift) % 2:
            yield moment


@pytest.mark.parametrize("every", EVERY_MOMENT)
@pytest.mark.parametrize("victim", ["worker", "agent", "guard", "kill"])
def test_somebody_dies_in_a_take(faulty: Faulty, undisturbed: Losses, victim: str, every: bool) -> None:
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    phases = [*TAKE_PHASES, "commit"] if victim == "kill" else TAKE_PHASES
    for phase, side in moments(victim, phases, every=every):
        row = f"{victim} {side} {phase}"
        known = faulty.snapshots()
        done = faulty.strike(victim, side, phase, "take", "train", "--json")
        faulty.mend(victim)
        faulty.assert_trains_on(row)
        committed = done.returncode == 0 or (victim, side, phase) == ("kill", "after", "commit")
        assert faulty.snapshots() - known == committed, row
        assert done.returncode in (0, 3, 4, 5, -9), f"{row}: {done.stdout}{done.stderr}"
        if victim == "guard" and phase != "open" and (side, phase) != ("before", "stop"):
            assert done.returncode == 0, row  # before STOP a take without a guard may be refused
    assert faulty.take()["nodes"] == ["n1", "n2"]
    assert faulty.finish() == undisturbed


def test_go_comes_when_a_node_has_just_gone_by_itself(faulty: Faulty, undisturbed: Losses) -> None:
    """The agent hangs while GO is told; its worker's deadline passes, or is about to, when it goes on."""
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    agent = agents.running(faulty.lab.folder, faulty.lab.node(NODE))
    outcomes = []
    for seconds in (3.0, 0.6, 0.8, 0.9, 0.95, 1.0, 1.05):
        known = faulty.snapshots()
        done = faulty.strike(
            f"late={agent}:{seconds}", "before", "go", "take", "train", "--json", "--max-pause", "1s"
        )
        outcomes.append(done.returncode)
        assert done.returncode in (0, 5), done.stdout + done.stderr
        assert faulty.snapshots() - known == (done.returncode == 0)
        faulty.assert_trains_on(f"{seconds} s")
        if done.returncode == 0:
            assert json.loads(done.stdout)["pause_seconds"] < 1.2
    assert outcomes[0] == 5
    assert faulty.finish() == undisturbed


@pytest.mark.parametrize(
    ("victim", "phases"),
    [("cut", ("stop", "shadow", "pages")), ("agent-hang", ("skeleton", "go")), ("hang-command", ("shadow",))],
)
def test_nobody_is_heard_in_a_take(
    faulty: Faulty, undisturbed: Losses, victim: str, phases: tuple[str, ...]
) -> None:
    """The network of the agents is cut, or somebody hangs, for longer than any deadline of the pause."""
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    for phase in phases:
        known = faulty.snapshots()
        words = ("take", "train", "--json", "--max-pause", "1s")
        if victim == "hang-command":
            command = faulty.hang(phase, *words)
            faulty.wait_steps(2)  # with the command still there
            command.send_signal(signal.SIGCONT)
            code = command.wait()
        else:
            code = faulty.strike(victim, "after", phase, *words).returncode
            faulty.wait_steps(2)  # before anything is mended
            faulty.mend(victim)
        assert code in (4, 5), phase
        faulty.assert_trains_on(f"{victim} after {phase}")
        assert faulty.snapshots() == known
    assert faulty.take()["nodes"] == ["n1", "n2"]
    assert faulty.finish() == undisturbed


def test_an_agent_repairs_what_its_predecessor_left(faulty: Faulty, undisturbed: Losses) -> None:
    """Agent, worker and guard die in the pause: the job stands still until the agent is started."""
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    done = faulty.strike("all", "after", "skeleton", "take", "train", "--json")
    assert done.returncode == 4, done.stdout
    assert NODE in done.stdout
    assert stopped(faulty.ranks())
    faulty.mend("all")
    faulty.assert_trains_on("an agent was started")
    assert faulty.take()["nodes"] == ["n1", "n2"]
    assert faulty.finish() == undisturbed


def test_criu_dies_in_a_take(faulty: Faulty) -> None:
    """It may harm the job of its node, and then the command says so; the others go on either way."""
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    done = faulty.strike("criu", "before", "skeleton", "take", "train", "--json")
    assert done.returncode == 10, done.stdout
    faulty.assert_clean()
    pids = faulty.ranks()
    eventually("no task is stopped", lambda: not stopped(pids), 30)
    eventually("no socket is in repair mode", lambda: not sockets_in_repair(pids), 20)


RESTORE_PHASES = [phase.value for phase in RESTORE]


@pytest.mark.parametrize("every", EVERY_MOMENT)
@pytest.mark.parametrize("victim", VICTIMS)
def test_somebody_dies_in_a_restore(faulty: Faulty, undisturbed: Losses, victim: str, every: bool) -> None:
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    faulty.take()
    faulty.kill()
    for phase, side in moments(victim, RESTORE_PHASES, every=every):
        faulty.restore_fails(victim, side, phase)
    faulty.restore("latest:train", "n2,n1")
    faulty.wait_steps(3)
    assert faulty.finish() == undisturbed


@pytest.mark.parametrize(
    ("victim", "phases"), [("cut", ("skeleton", "go")), ("agent-hang", ("pages",)), ("hang-command", ("go",))]
)
def test_nobody_is_heard_in_a_restore(
    faulty: Faulty, undisturbed: Losses, victim: str, phases: tuple[str, ...]
) -> None:
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    faulty.take()
    faulty.kill()
    for phase in phases:
        faulty.restore_fails(victim, "after", phase)
    faulty.restore("latest:train", "n2,n1")
    faulty.wait_steps(3)
    assert faulty.finish() == undisturbed
