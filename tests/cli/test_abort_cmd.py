"""`abort` ends an operation through its command, and says what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Timer

from cw_snapshot.coordinator.operations import operation
from cw_snapshot.coordinator.settings import Settings
from tests.cli.conftest import Run
from tests.cli.operations import running


def test_one_that_runs(run: Run, state: Path) -> None:
    with running(state, "llama") as (name, command):
        done = run("abort", "latest:llama", "--json")
        assert (done.code, done.json["operation"], done.json["outcome"]) == (0, name, "take-aborted")
        assert done.json["phase"] == "pages"
        assert command.wait(10) != 0, "it has ended"


def test_one_that_has_ended(run: Run, state: Path) -> None:
    with operation(Settings(state_dir=state), "take", "j", {}):
        pass
    done = run("abort", "latest", "--json")
    assert (done.code, done.json["code"]) == (3, "operation-ended")
    assert run("abort", "1999").code == 6


def test_one_that_succeeds_meanwhile(run: Run, state: Path) -> None:
    with running(state, "llama", "deaf") as (name, command):
        assert command.stdin is not None
        Timer(0.5, command.stdin.close).start()
        done = run("abort", name, "--json")
    assert (done.code, done.json["code"]) == (3, "aborted-too-late")


def test_one_whose_command_died(run: Run, state: Path) -> None:
    with running(state, "llama") as (name, command):
        command.kill()
        command.wait()
    done = run("abort", name, "--json")
    assert (done.code, done.json["code"]) == (4, "operation-died")
    assert "in phase pages" in done.json["message"]
    assert done.json["evidence"] == [f"pid {command.pid}"]


def test_waiting_for_one(run: Run, state: Path) -> None:
    with running(state, "llama") as (name, command):
        assert command.stdin is not None
        Timer(0.5, command.stdin.close).start()
        begun = time.monotonic()
        done = run("wait", name, "--json")
        assert time.monotonic() - begun > 0.3
    assert (done.code, done.json["schema"]) == (0, "cw-snapshot/wait-operation/1")
    with running(state, "llama") as (name, command):
        Timer(0.5, command.terminate).start()
        assert run("wait", name).code == 4, "as its command"


def test_a_nodes_part_is_not_aborted_alone(run: Run, state: Path) -> None:
    with operation(Settings(state_dir=state), "take", "j", {}, name="20260102T030405Z-take-00000001.0"):
        pass
    done = run("abort", "20260102T030405Z-take-00000001.0", "--json")
    assert (done.code, done.json["code"]) == (3, "operation-part")
