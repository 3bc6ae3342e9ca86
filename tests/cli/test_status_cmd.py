"""`status` tells what runs, and what came of the others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.cli.status_cmd import done_text, shown, took_text
from cw_snapshot.coordinator.operations import operation
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.take import TakeAbortedError
from tests.cli.conftest import Run
from tests.cli.operations import running


def until_bytes(run: Run) -> Any:
    """`status --json` when the operation that runs has told how far it is."""
    while not all(len(o["progress"]) == 2 for o in run("status", "--json").json["operations"]):
        time.sleep(0.05)
    return run("status", "--json").json["operations"]


def test_one_that_runs(run: Run, state: Path) -> None:
    with running(state, "llama") as (name, _):
        found = until_bytes(run)[0]
        assert (found["id"], found["standing"], found["phase"]) == (name, "running", "pages")
        assert found["progress"]["n1"] == {"done_bytes": 25, "total_bytes": 100}
        done = run("status")
        assert f"{name}: n1 25% of 100 B, n2 0% of 100 B" in done.out
        assert run("status", "--job", "other", "--json").json["operations"] == []


def test_one_whose_command_died(run: Run, state: Path) -> None:
    with running(state, "llama") as (name, command):
        until_bytes(run)
        command.kill()
        command.wait()
    done = run("status")
    line = next(line for line in done.out.splitlines() if line.startswith(name))
    assert line.split()[3] == "died"
    assert "12% of 200 B" in line, "how far it was"
    assert "doctor" in done.err


def test_those_that_ended(run: Run, state: Path) -> None:
    assert run("status", "--json").json["operations"] == []
    settings = Settings(state_dir=state)
    with operation(settings, "take", "one", {}) as op:
        op.result = {"snapshot": "20260102T030405Z-1a2b3c4d"}
    with pytest.raises(TakeAbortedError), operation(settings, "take", "two", {}):
        raise TakeAbortedError(cause="n1: it\nfell over.", fix="take again.")
    one, two = (line for line in run("status").out.splitlines()[1:])
    assert " ok " in one
    assert one.rstrip().endswith("20260102T030405Z-1a2b3c4d")
    assert "take-aborted (4)" in two
    assert "it fell over" in two, "one line"
    assert f"{os.uname().nodename}" in two


def test_a_part_is_shown_where_the_whole_is_not(run: Run, state: Path) -> None:
    settings = Settings(state_dir=state)
    with operation(settings, "take", "j", {}, name="20260102T030405Z-take-00000001.0"):
        pass
    assert [o["id"] for o in run("status", "--json").json["operations"]] == [
        "20260102T030405Z-take-00000001.0"
    ]
    with operation(settings, "take", "j", {}, name="20260102T030405Z-take-00000001"):
        pass
    assert [o["id"] for o in run("status", "--json").json["operations"]] == ["20260102T030405Z-take-00000001"]


def test_the_newest_are_shown() -> None:
    operations = [{"id": f"{n:02}", "standing": "running" if n == 0 else "ok"} for n in range(20)]
    assert [o["id"] for o in shown(operations, everything=False)] == ["00", *(f"{n}" for n in range(10, 20))]
    assert shown(operations, everything=True) == operations


def test_texts() -> None:
    assert took_text("2026-01-02T03:04:05+00:00", "2026-01-02T04:04:59+00:00", None) == "1 h 00 m"  # type: ignore[arg-type]
    assert took_text("nonsense", "2026-01-02T04:04:59+00:00", None) == "-"  # type: ignore[arg-type]
    assert done_text({}) == "-"
    assert done_text({"a": {"done_bytes": 1, "total_bytes": 4}}) == "25% of 4 B"
