"""Whoever is killed, whenever: the job goes on as if nothing had happened, and nothing is left.

criu is the exception that docs/internals/guard.md names: its death may harm the job, and then the
command says so.
"""

from __future__ import annotations

import ctypes
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cw_snapshot.coordinator.jobs import JobState
from cw_snapshot.snapshot import procfs, tree
from tests.engine import Engine, eventually, losses
from tests.root.test_training import compare, ended, undisturbed_losses

pytestmark = pytest.mark.root

DIE = Path(__file__).parent.parent / "die.py"
TCP_REPAIR = 19
_libc = ctypes.CDLL(None, use_errno=True)

PHASES = ("preflight", "open", "stop", "skeleton", "shadow", "go", "streams", "metadata", "end")
RESTORE_PHASES = ("plan", "image_sinks", "prepare", "skeleton", "sinks", "go", "end")
STEPS = ("--steps", "150", "--width", "256")
RANDOM = 12
"""Random moments in the usual run; `-m slow` has a hundred of each kind."""


def die(engine: Engine, victim: str, moment: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DIE, victim, moment, *words]
    return subprocess.run(
        command, env=engine.environment, capture_output=True, text=True, timeout=120, check=False
    )


def sockets_in_repair(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        with suppress(procfs.ProcessGoneError, ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            for descriptor in procfs.descriptors(pid):
                if descriptor.target.startswith("socket:"):
                    fd = _libc.syscall(438, pidfd, descriptor.fd, 0)
                    if fd < 0:
                        continue
                    with socket.socket(fileno=fd) as sock, suppress(OSError):
                        if sock.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
                            found.append(f"pid {pid} fd {descriptor.fd}")
            os.close(pidfd)
    return found


def tables() -> set[str]:
    done = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "CRIU-" in line}


def zombies(root: int) -> list[int]:
    return [m.pid for m in tree.find(root).members if m.zombie]


def open_files(root: int) -> list[tuple[int, list[int]]]:
    return [(m.pid, [d.fd for d in procfs.descriptors(m.pid)]) for m in tree.find(root).living]


@pytest.fixture
def tables_before() -> set[str]:
    return tables()


def assert_unharmed(engine: Engine, name: str, before: set[str]) -> None:
    """The job runs, and nothing of the operation is left, in a short while: the guard comes after."""
    root = engine.root(name)
    pids = [m.pid for m in tree.find(root).living]
    eventually("no task is stopped", lambda: not stopped(pids), 60)
    eventually("no socket is in repair mode", lambda: not sockets_in_repair(pids), 20)
    eventually("no table is left", lambda: not tables() - before, 20)
    eventually("no zombie is left", lambda: not zombies(root), 20)
    engine.assert_clean()


def stopped(pids: list[int]) -> list[int]:
    """Those that are stopped; half-made shadows were seen as members of the tree, and end."""
    found = []
    for pid in pids:
        with suppress(procfs.ProcessGoneError):
            if procfs.read_stat(pid).state in "Tt":
                found.append(pid)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)


def snapshots(engine: Engine) -> list[str]:
    return [s["snapshot"] for s in engine.ok("list", "--json").json["snapshots"]]


@pytest.mark.every_criu
def test_the_command_of_a_take_dies_in_every_phase(engine: Engine, tables_before: set[str]) -> None:
    take_dies_in_every_phase(engine, tables_before, "command")


@pytest.mark.parametrize("victim", ["guard", "keeper"])
def test_a_helper_of_a_take_dies_in_every_phase(engine: Engine, tables_before: set[str], victim: str) -> None:
    take_dies_in_every_phase(engine, tables_before, victim)


def take_dies_in_every_phase(engine: Engine, tables_before: set[str], victim: str) -> None:
    engine.counter()
    files = open_files(engine.root("counter"))
    for phase in PHASES:
        for side in ("before", "after"):
            known = len(snapshots(engine))
            done = die(engine, victim, f"{side}:{phase}", "take", "counter", "--json")
            assert_unharmed(engine, "counter", tables_before)
            assert open_files(engine.root("counter")) == files, f"{side} {phase}"
            taken = len(snapshots(engine)) - known
            committed = done.returncode == 0 or (victim, phase) == ("command", "end")
            assert taken == committed, f"{side} {phase}: {done.stderr}"
            assert done.returncode in (0, -9, 3, 4, 5), done.stderr
            engine.wait_lines("counter", 3)
    for snapshot in snapshots(engine):
        engine.ok("verify", snapshot)


def random_moments(seed: str, count: int, longest: float) -> list[float]:
    generator = random.Random(seed)  # noqa: S311
    return [round(generator.uniform(0, longest), 2) for _ in range(count)]


def kill_at_random(engine: Engine, before: set[str], moments: list[str]) -> None:
    """One training taken over and over, the command killed each time."""
    for moment in moments:
        die(engine, "command", moment, "take", "train", "--json")
        view = engine.store.find("train")
        assert view.state is JobState.RUNNING, f"{moment}: {engine.log('train')[-30:]}"
        assert_unharmed(engine, "train", before)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [RANDOM, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "longest"), [("stop", 250.0), ("injection", 30.0)])
def test_a_training_survives_random_deaths(
    engine: Engine,
    undisturbed: dict[int, list[str]],
    tables_before: set[str],
    method: str,
    longest: float,
    count: int,
) -> None:
    out = engine.folder / "out"
    # Slow enough to be still at work at the end.
    engine.torch_job("train", out, *STEPS, "--sleep", str(max(0.2, 0.014 * count)))
    eventually("it trains", lambda: len(losses(out).get(0, [])) > 5)
    moments = [f"{method}:{ms}" for ms in random_moments(method, count, longest)]
    kill_at_random(engine, tables_before, moments)
    ended(engine, "train")
    for rank, lines in losses(out).items():
        assert compare(lines, undisturbed[rank]) == 0


@pytest.mark.every_criu("criu4.2")
def test_the_command_of_a_restore_dies_in_every_phase(engine: Engine, tables_before: set[str]) -> None:
    restore_dies_in_every_phase(engine, tables_before, "command")


@pytest.mark.parametrize("victim", ["guard", "criu"])
def test_a_helper_of_a_restore_dies_in_every_phase(
    engine: Engine, tables_before: set[str], victim: str
) -> None:
    restore_dies_in_every_phase(engine, tables_before, victim)


def restore_dies_in_every_phase(engine: Engine, tables_before: set[str], victim: str) -> None:
    engine.counter()
    engine.take("counter")
    engine.stop("counter")
    lines = len(engine.log("counter"))
    for phase in RESTORE_PHASES:
        for side in ("before", "after"):
            done = die(engine, victim, f"{side}:{phase}", "restore", "latest:counter", "--json")
            assert done.returncode in {"command": (-9,), "guard": (0,), "criu": (0, 4)}[victim], done.stderr
            jobs = engine.ok("ps", "--json").json["jobs"]
            if done.returncode == 0 or jobs:
                engine.wait_lines("counter", 3)
                engine.stop("counter")
            else:
                # The guard may still be at work; when it is done the job can be restored.
                engine.assert_clean()
                assert engine.ok("ps", "--json").json["jobs"] == []
            engine.assert_clean()
            eventually("no table is left", lambda: not tables() - tables_before, 20)
    engine.restore("latest:counter")
    engine.wait_lines("counter", 3)
    assert len(engine.log("counter")) > lines


@pytest.mark.every_criu
@pytest.mark.parametrize("phase", ["stop", "skeleton", "shadow"])
def test_when_criu_dies_the_report_says_that_the_job_may_be_harmed(
    engine: Engine, tables_before: set[str], phase: str
) -> None:
    engine.counter()
    done = die(engine, "criu", f"after:{phase}", "take", "counter", "--json")
    assert done.returncode in (0, 10) if phase == "shadow" else done.returncode == 10, done.stderr
    engine.assert_clean()
    assert not tables() - tables_before
    engine.wait_lines("counter", 3)  # no sockets, no injection under way: this one lives


def test_criu_dies_while_shadows_are_made(engine: Engine, tables_before: set[str]) -> None:
    """Tasks that it leaves changed get registers, mask and text back from the journal."""
    engine.counter()
    for tenths in range(0, 24, 3):
        done = die(engine, "criu", f"injection:{tenths / 10}", "take", "counter", "--json")
        assert done.returncode in (0, 10), done.stderr
        assert_unharmed(engine, "counter", tables_before)
        engine.wait_lines("counter", 3)
    lines = engine.log("counter")
    assert lines == [str(n) for n in range(len(lines))]


def test_guard_and_command_die_and_doctor_lets_the_job_go_on(engine: Engine, tables_before: set[str]) -> None:
    engine.counter()
    root = engine.root("counter")
    die(engine, "guard", "before:skeleton", "take", "counter")  # it alone: the take goes on
    engine.wait_lines("counter", 3)
    done = die(engine, "both", "before:skeleton", "take", "counter")
    assert done.returncode == -9
    assert stopped([root]) == [root]
    engine.run("doctor", "--fix")
    assert_unharmed(engine, "counter", tables_before)
    engine.wait_lines("counter", 3)


def test_a_command_that_hangs_is_ended(engine: Engine, tables_before: set[str]) -> None:
    engine.counter()
    done = die(engine, "hang", "before:skeleton", "take", "counter", "--max-pause", "1s")
    assert done.returncode == -9
    assert_unharmed(engine, "counter", tables_before)
    engine.wait_lines("counter", 3)
