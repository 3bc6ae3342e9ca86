"""The machine's pace is measured once, again after a while, and anew after a boot."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cw_snapshot.coordinator import machine
from cw_snapshot.snapshot import machine_pace, procfs
from cw_snapshot.snapshot.predict import Pace

SLOW = Pace(
    page_seconds=9e-8, byte_seconds=9e-10, look_seconds=9e-6, cores=machine_pace.cores(), measured=True
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Pace]:
    """What the next measurements find, the next one last."""
    found = [replace(SLOW, page_seconds=5e-8, look_seconds=20e-6), SLOW]
    monkeypatch.setattr(machine_pace, "measure", found.pop)
    return found


def test_it_is_kept_for_a_while(
    tmp_path: Path, measured: list[Pace], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.pace(tmp_path / "state") == SLOW
    assert machine.pace(tmp_path / "state") == SLOW
    assert len(measured) == 1
    monkeypatch.setattr(machine, "AGAIN_AFTER_SECONDS", 0.0)
    assert machine.pace(tmp_path / "state") == replace(SLOW, page_seconds=5e-8)  # the best of both
    assert not measured


def test_the_first_measurements_follow_each_other_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one busy moment does not rule the predictions of ten minutes."""
    monkeypatch.setattr(machine_pace, "measure", lambda: SLOW)
    path = tmp_path / "machine.json"
    machine.pace(tmp_path)
    for seconds, count in ((4, 1), (6, 2), (6, 2), (21, 3), (81, 4), (321, 5), (601, 6)):
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "at": since_boot() - seconds}))
        machine.pace(tmp_path)
        assert json.loads(path.read_text())["count"] == count, seconds


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("spoilt", ["boot", "cores", "schema", "text", "field"])
def test_it_is_measured_anew(
    tmp_path: Path, measured: list[Pace], monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    machine.pace(tmp_path)
    path = tmp_path / "machine.json"
    document = json.loads(path.read_text())
    if spoilt == "boot":
        monkeypatch.setattr(procfs, "boot_id", lambda: "another")
    elif spoilt == "cores":
        document["pace"]["cores"] += 1
    elif spoilt == "field":
        del document["pace"]["byte_seconds"]
    else:
        document["schema"] = "another"
    path.write_text("{" if spoilt == "text" else json.dumps(document))
    assert machine.pace(tmp_path).page_seconds == 5e-8


def test_a_state_directory_that_is_full(
    tmp_path: Path, measured: list[Pace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine, "write_json", full)
    assert machine.pace(tmp_path) == SLOW


def test_where_nothing_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Pace:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(machine_pace, "measure", refused)
    assert not machine.pace(tmp_path).measured
    assert not (tmp_path / "machine.json").exists()


def test_a_measurement() -> None:
    """Of this machine, whatever it is: between a tenth and a hundred times of the usual."""
    found, usual = machine_pace.measure(), Pace()
    for name in ("page_seconds", "byte_seconds", "look_seconds"):
        assert getattr(usual, name) / 10 < getattr(found, name) < 100 * getattr(usual, name), name
    assert found.measured
    assert found.cores >= 1
