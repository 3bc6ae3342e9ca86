"""Operations over nodes: listed, given up by a signal or `abort` in any phase, awaited; what jobs print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.engine import Engine, eventually
from tests.lab import cluster
from tests.lab.conftest import Losses, MakeLab
from tests.lab.faulty import FAULTS, Faulty

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.timeout(400)]


@pytest.fixture
def faulty(engine: Engine, make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    yield Faulty(engine, make_lab, monkeypatch, cluster.STEPS)


@pytest.fixture
def training(faulty: Faulty) -> Faulty:
    faulty.train("n1,n2", run=("--nproc-per-node", "1"))
    return faulty


def test_a_take_is_interrupted(training: Faulty, undisturbed: Losses) -> None:
    for side, phase, code in (
        ("before", "open", 4),
        ("after", "stop", 4),
        ("before", "shadow", 4),
        ("before", "go", 5),
        ("after", "go", 5),
        ("after", "pages", 5),
        ("before", "commit", 0),  # it is about to succeed
    ):
        row = f"{side} {phase}"
        known = training.snapshots()
        done = training.strike("term", side, phase, "take", "train", "--json")
        assert done.returncode == code, f"{row}: {done.stdout}{done.stderr}"
        assert training.snapshots() - known == (code == 0), row
        training.assert_trains_on(row)
        last = training.engine.ok("status", "--json").json["operations"][-1]
        assert (last["exit_code"], last["nodes"]) == (code, ["n1", "n2"]), row
        if code:
            assert "SIGTERM" in json.loads(done.stdout)["message"], row
    assert training.finish() == undisturbed


def test_a_restore_is_interrupted(training: Faulty, undisturbed: Losses) -> None:
    training.take()
    training.kill()
    for side, phase in (("before", "plan"), ("after", "skeleton"), ("before", "pages"), ("after", "pages")):
        row = f"{side} {phase}"
        words = ("restore", "latest:train", "--nodes", "n2,n1", "--json")
        done = training.strike("term", side, phase, *words)
        assert done.returncode == 4, f"{row}: {done.stdout}{done.stderr}"
        training.assert_clean()
        assert not training.ranks(), row
    done = training.strike("term", "after", "go", *words)
    assert done.returncode == 0, "once it runs it is not ended again"
    training.wait_steps(3)
    assert training.finish() == undisturbed


def test_one_that_runs_is_listed_and_aborted(training: Faulty, undisturbed: Losses) -> None:
    engine = training.engine
    command = engine.other_process(
        [sys.executable, str(FAULTS), "command", "wait=60", "after", "go", "take", "train", "--json"],
        env=engine.environment,
        stdout=subprocess.PIPE,
    )
    found = eventually(
        "its phase is told",
        lambda: [
            o
            for o in engine.ok("status", "--json").json["operations"]
            if (o["standing"], o["phase"]) == ("running", "go")
        ],
        30,
    )[0]
    assert found["nodes"] == ["n1", "n2"]
    training.wait_steps(2)  # nodes let their trees go, whatever the command does
    with engine.start("wait", found["id"]) as waits:
        aborted = engine.ok("abort", "latest:train", "--json").json
        assert (aborted["operation"], aborted["exit_code"]) == (found["id"], 5)
        assert waits.wait(20) == 5, "as the command"
    assert command.wait(20) == 5
    assert not training.snapshots()
    training.assert_trains_on("aborted")
    assert training.finish() == undisturbed


def test_what_a_job_prints_and_its_end(faulty: Faulty) -> None:
    engine = faulty.engine
    script = 'echo "I am $NODE_RANK"; until test -e "$0"; do sleep 0.1; done; echo over; exit $NODE_RANK'
    door = engine.folder / "door"
    engine.ok("run", "--job-id", "talk", "--nodes", "n1,n2", "--", "sh", "-c", script, door)
    eventually("both talk", lambda: engine.ok("logs", "talk").out.count("I am") == 2)
    assert engine.ok("logs", "talk").out.splitlines() == ["n1 | I am 0", "n2 | I am 1"]
    assert engine.ok("logs", "talk", "--node", "n2").out == "I am 1\n"
    assert engine.run("logs", "talk", "--node", "n3").code == 2
    with (
        engine.start("logs", "-f", "talk", stdout=subprocess.PIPE) as follows,
        engine.start("wait", "talk", "--json", stdout=subprocess.PIPE) as waits,
    ):
        assert follows.stdout is not None
        first = follows.stdout.readline() + follows.stdout.readline()
        assert waits.poll() is None
        door.touch()
        last, _ = follows.communicate(timeout=30)
        ended = json.loads(waits.communicate(timeout=30)[0])
    assert sorted(first.decode().splitlines()) == ["n1 | I am 0", "n2 | I am 1"]
    assert sorted(last.decode().splitlines()) == ["n1 | over", "n2 | over"]
    assert waits.returncode == 1, "the largest"
    assert [tree["exit_code"] for tree in ended["trees"]] == [0, 1]
    trees = engine.ok("logs", "talk", "--tail", "1", "--json").json["trees"]
    assert [(tree["node"], tree["output"]) for tree in trees] == [("n1", "over\n"), ("n2", "over\n")]
