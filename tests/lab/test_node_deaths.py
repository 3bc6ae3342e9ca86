"""Whoever is killed on whichever side, whenever: all ranks train on, or nothing is left anywhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from cw_snapshot.coordinator.barrier import RESTORE, TAKE
from cw_snapshot.lab import agents
from tests.engine import Engine, eventually
from tests.lab.conftest import Losses, MakeLab, undisturbed_losses
from tests.lab.faulty import NODE, STEPS, Faulty
from tests.root.test_kill_table import sockets_in_repair, stopped

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.timeout(900)]

SIDES = ("before", "after")
VICTIMS = ("worker", "agent", "guard", "criu", "kill")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)


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
