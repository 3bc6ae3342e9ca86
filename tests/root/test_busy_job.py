"""A job that never rests: it forks and ends 200 children a second, maps and unmaps, writes 300 MB/s to
its log and has timers of 1 ms, and tells by itself when anything is not what it was (tests/jobs/busy.c).

Takes of it work or are given up cleanly, whoever is killed in between.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from cw_snapshot.coordinator.jobs import JobState
from cw_snapshot.snapshot import procfs
from tests.engine import Engine, eventually
from tests.root.test_kill_table import assert_unharmed, die, snapshots, tables

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

FEW, MANY = 2, 100
MOMENTS = {"open": 250, "stop": 150, "injection": 20, "streams": 400}
"""From where, and up to how many milliseconds later, somebody is killed."""


class Busy:
    """The job, and what of it must be so."""

    def __init__(self, engine: Engine, program: Path) -> None:
        self.engine = engine
        self._program = program
        self._checked = 0
        """Lines of its log that were right."""

    def start(self) -> None:
        self._checked = 0
        log = self.engine.folder / "busy.log"
        log.unlink(missing_ok=True)
        self.engine.job("busy", [self._program, log, "200", "300"])
        self.engine.wait_lines("busy", 3)
        self.files = self.descriptors()

    def descriptors(self) -> list[tuple[int, str]]:
        return [(d.fd, d.target) for d in procfs.descriptors(self.engine.root("busy"))]

    def check(self) -> None:
        """It runs on, has found nothing wrong, and its chain is what it must be; nothing of ours is in it."""
        before = len(self.lines())
        eventually("it goes on", lambda: len(self.lines()) >= before + 3 or not self.runs())
        lines = self.lines()
        assert self.runs(), lines[-3:]
        assert not [line for line in lines if line.startswith("broken")]
        rounds = [int(line.split()[0]) for line in lines]
        assert rounds == list(range(50, 50 * len(lines) + 1, 50)), "each line once and in order"
        forks = [int(line.split()[2]) for line in lines]
        assert forks[-1] > forks[self._checked]
        self._checked = len(lines) - 1
        assert self.descriptors() == self.files

    def is_well(self) -> bool:
        """What it finds itself, after what may have harmed it."""
        try:
            self.check()
        except AssertionError:
            return False
        return True

    def check_chain(self) -> None:
        """The hash of the last line is the one that is calculated at rest."""
        rounds, value, *_ = self.lines()[-1].split()
        done = subprocess.run([self._program, "chain", rounds], capture_output=True, text=True, check=True)
        assert value == done.stdout.strip(), f"after {rounds} rounds"

    def lines(self) -> list[str]:
        """Whole lines of its output."""
        text = Path(self.engine.store.find("busy").record.log).read_text()
        return text.rpartition("\n")[0].splitlines()

    def runs(self) -> bool:
        return self.engine.store.find("busy").state is JobState.RUNNING


@pytest.fixture
def busy(engine: Engine, built: dict[str, Path]) -> Busy:
    made = Busy(engine, built["busy"])
    made.start()
    return made


@pytest.fixture
def before() -> set[str]:
    return tables()


def test_takes_and_a_restore(busy: Busy) -> None:
    engine = busy.engine
    for _ in range(3):
        engine.take("busy")
        busy.check()
    engine.take("busy", "--stop")
    lines = len(busy.lines())
    engine.restore("latest:busy")
    busy.files = busy.descriptors()
    busy.check()
    busy.check_chain()
    assert len(busy.lines()) > lines
    engine.take("busy")
    busy.check()
    engine.assert_clean()
    engine.ok("verify", "latest:busy")


@pytest.mark.parametrize("victim", ["command", "guard", "keeper", "both", "criu"])
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_takes_die_at_random(busy: Busy, before: set[str], victim: str, count: int) -> None:
    engine = busy.engine
    committed = harmed = 0
    for moment in moments(victim, count):
        known = len(snapshots(engine))
        done = die(engine, victim, moment, "take", "busy", "--json")
        told = f"{moment}: {done.stdout} {done.stderr}"
        assert done.returncode in (0, 3, 4, 5, 10, -9), told
        if victim == "both":
            engine.run("doctor", "--fix")
        taken = len(snapshots(engine)) - known
        committed += taken
        assert taken == 1 if done.returncode == 0 else taken in (0, 1), told
        if done.returncode == 10:
            assert victim == "criu", told
            harmed += 1
            if not busy.is_well():
                engine.stop("busy")
                engine.assert_clean()
                busy.start()
                continue
        assert_unharmed(engine, "busy", before)
        busy.check()
    busy.check_chain()
    print(f"{victim}: {committed} of {count} committed, {harmed} may be harmed")
    for snapshot in snapshots(engine):
        engine.ok("verify", snapshot, "--sample", "1%")


def moments(seed: str, count: int) -> list[str]:
    """From where, and how many milliseconds later, somebody is killed; keepers live in the end only."""
    generator = random.Random(seed)  # noqa: S311
    names = ["streams"] if seed == "keeper" else list(MOMENTS)
    chosen = [generator.choice(names) for _ in range(count)]
    return [f"{name}:{generator.uniform(0, MOMENTS[name]):.2f}" for name in chosen]
