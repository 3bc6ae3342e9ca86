"""A job is taken, goes on, is killed and comes back: the main thing."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.engine import COUNTER, Engine, consecutive, eventually, shadows_of, states

pytestmark = pytest.mark.root

TRAFFIC = Path(__file__).parents[1] / "jobs" / "traffic.py"


@pytest.mark.every_criu
def test_goes_on_after_the_take_and_comes_back_where_it_was(engine: Engine) -> None:
    engine.counter()
    report = engine.take("counter")
    assert report["schema"] == "cw-snapshot/take/1"
    assert 0 < report["pause_seconds"] < 1
    lines = engine.wait_lines("counter", 20)
    assert lines == [str(n) for n in range(len(lines))], "the job must not notice"
    engine.stop("counter")
    before = engine.log("counter")
    restored = engine.restore("latest:counter")
    assert restored["incarnation"] == 1
    engine.wait_lines("counter", 20)
    again = engine.log("counter")[len(before) :]
    assert consecutive(again)
    assert int(again[0]) < len(before), "it comes back at the snapshot, not at the kill"
    engine.assert_clean()


def test_an_idle_job_costs_no_extra_memory(engine: Engine) -> None:
    """Reading a shadow must not give it pages of its own."""
    code = "import time; x = bytearray(range(256)) * (1 << 20); print(1, flush=True); time.sleep(600)"
    engine.job("idle", [sys.executable, "-c", code])
    eventually("it began", lambda: engine.log("idle") == ["1"])
    assert engine.take("idle")["extra_memory_bytes"] < 2 << 20


@pytest.mark.every_criu
def test_take_restore_take_restore(engine: Engine) -> None:
    engine.counter()
    for generation in range(1, 4):
        engine.take("counter")
        engine.wait_lines("counter", 5)
        engine.stop("counter")
        assert engine.restore("latest:counter")["incarnation"] == generation
        before = engine.log("counter")
        after = engine.wait_lines("counter", 10)
        assert int(after[-1]) - int(after[len(before)]) == len(after) - len(before) - 1
    engine.assert_clean()


def test_three_snapshots_are_restored_separately(engine: Engine) -> None:
    engine.counter()
    taken = []
    for _ in range(3):
        taken.append(engine.take("counter")["snapshot"])
        engine.wait_lines("counter", 30)
    engine.stop("counter")
    firsts = []
    for snapshot in taken:
        before = len(engine.log("counter"))
        engine.restore(snapshot)
        engine.wait_lines("counter", 5)
        firsts.append(int(engine.log("counter")[before]))
        engine.stop("counter")
    assert firsts == sorted(firsts)
    assert firsts[0] < firsts[1] < firsts[2]


def test_stop_kills_the_job_when_its_snapshot_is_durable(engine: Engine) -> None:
    engine.counter()
    report = engine.take("counter", "--stop")
    assert report["stopped_job"]
    assert report["pause_seconds"] is None
    assert engine.ok("verify", report["snapshot"], "--json").json["ok"]
    eventually("the job is gone", lambda: engine.ok("ps", "--json").json["jobs"] == [])
    before = len(engine.log("counter"))
    engine.restore(report["snapshot"])
    engine.wait_lines("counter", 5)
    lines = engine.log("counter")
    assert lines == [str(n) for n in range(len(lines))], "not a line is lost or doubled"
    assert before < len(lines)


def test_restore_is_refused_while_the_job_runs(engine: Engine) -> None:
    engine.counter()
    engine.take("counter")
    done = engine.run("restore", "latest:counter", "--json")
    assert done.code == 3
    assert done.json["code"] == "job-runs"
    engine.wait_lines("counter", 5)


def test_a_tree_that_we_did_not_start(engine: Engine) -> None:
    log = engine.folder / "plain.log"
    with log.open("ab") as file:
        process = engine.other_process(
            [sys.executable, "-u", "-c", COUNTER], stdout=file, stderr=file, stdin=-3, start_new_session=True
        )
    eventually("it counts", lambda: log.read_text().count("\n") > 5)
    engine.ok("take", "--pid", str(process.pid), "plain")
    time.sleep(0.2)
    assert process.poll() is None
    process.kill()
    process.wait()
    before = len(log.read_text().splitlines())
    engine.restore("latest:plain")
    eventually("it counts again", lambda: len(log.read_text().splitlines()) > before + 5)
    assert consecutive(log.read_text().splitlines()[before:])


@pytest.mark.every_criu
def test_stopped_tasks_stay_stopped(engine: Engine) -> None:
    engine.job("sleeper", ["sh", "-c", "sleep 1000 & kill -STOP $!; while :; do date +%N; sleep 0.05; done"])
    engine.wait_lines("sleeper", 3)
    root = engine.root("sleeper")
    assert "T" in states(root).values()
    engine.take("sleeper")
    engine.wait_lines("sleeper", 3)
    assert list(states(root).values()).count("T") == 1
    engine.stop("sleeper")
    pid = engine.restore("latest:sleeper")["pid"]
    engine.wait_lines("sleeper", 3)
    assert list(states(pid).values()).count("T") == 1


def test_a_job_that_ends_while_its_shadow_is_read(engine: Engine) -> None:
    """The snapshot of a job that crashes right after the pause is the one that is needed."""
    end = engine.folder / "end"
    code = f"""if True:
        import os, time
        x = bytearray(range(256)) * (1 << 20)
        print(0)
        while not os.path.exists({str(end)!r}): time.sleep(0.02)
        print(len(x))"""
    engine.job("short", [sys.executable, "-u", "-c", code])
    eventually("it began", lambda: engine.log("short") == ["0"])
    process = engine.start("take", "short", stdout=-3, stderr=-3)
    eventually("its shadow is read", lambda: shadows_of(engine, "short"))
    os.kill(engine.root("short"), signal.SIGKILL)
    assert process.wait(60) == 0
    assert engine.run("wait", "short").code == 128 + signal.SIGKILL
    engine.assert_clean()
    end.touch()
    engine.restore("latest:short")
    engine.ok("wait", "short")
    assert engine.log("short") == ["0", str(256 << 20)]


def test_connections_with_full_buffers(engine: Engine) -> None:
    """What one end had written and its kernel not sent is sent when the other end is there again."""
    folder = engine.folder / "talk"
    folder.mkdir()
    engine.job("talk", [sys.executable, "-u", TRAFFIC, folder], "--nproc-per-node", "2")
    engine.wait_lines("talk", 20)
    engine.take("talk")
    engine.stop("talk")
    engine.restore("latest:talk")
    new = engine.wait_lines("talk", 40)[-40:]
    assert not [line for line in new if "ERROR" in line], new
    received = [int(line.split()[2]) for line in new if line.startswith("0 0 ")]
    assert received[-1] > received[0]
