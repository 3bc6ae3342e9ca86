"""The record of an operation never decides how the operation ends."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator import operations, progress_file
from cw_snapshot.coordinator.operation_records import host, read_progress, read_record
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.coordinator.progress_file import ProgressFile
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.errors import UsageError
from tests.engine import eventually


def settings(state: Path, **others: Any) -> Settings:
    return Settings(state_dir=state, **others)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_be_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "dump.log"
    log.write_text("x")
    monkeypatch.setattr(operations.shutil, "copyfileobj", full)
    error = UsageError(what="first")
    Operation("id", "take", "job", tmp_path).keep_log(log, error)
    assert "No space left" in error.evidence[0]


def test_an_outcome_that_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with operation(settings(tmp_path), "take", "job", {}) as op:
        monkeypatch.setattr(operations, "write_json", full)
    assert "No space left" in op.unwritten
    monkeypatch.undo()
    with pytest.raises(UsageError, match="first") as caught, operation(settings(tmp_path), "take", "job", {}):
        monkeypatch.setattr(operations, "write_json", full)
        raise UsageError(what="first")
    assert "No space left" in caught.value.evidence[0]


def test_who_what_and_how_it_ended(tmp_path: Path) -> None:
    asked = {"options": {"stop": True}, "repository": "/r"}
    with operation(settings(tmp_path), "take", "job", asked, nodes=["n1", "n2"]) as op:
        running = read_record(op.folder)
        op.result = {"snapshot": "s"}
    assert running["outcome"] == "running"
    assert running["who"]["host"] == host()
    assert running["who"]["uid"] == os.getuid()
    assert running["options"] == {"stop": True}
    assert running["nodes"] == ["n1", "n2"]
    ended = read_record(op.folder)
    assert (ended["outcome"], ended["exit_code"], ended["result"]) == ("ok", 0, {"snapshot": "s"})
    assert ended["ended"] >= ended["begun"]


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (UsageError(what="x", evidence=["pid 7"]), "usage", 2),
        (KeyboardInterrupt(), "KeyboardInterrupt", 4),
        (RuntimeError("x"), "RuntimeError", 1),
    ],
)
def test_a_failure_is_recorded_with_its_exit_code(
    tmp_path: Path, error: BaseException, outcome: str, code: int
) -> None:
    with pytest.raises(type(error)), operation(settings(tmp_path), "take", "job", {}) as op:
        op.phase("pages")
        raise error
    record = read_record(op.folder)
    assert (record["outcome"], record["exit_code"], record["phase"]) == (outcome, code, "pages")
    assert record["nodes"] == [host()]
    if isinstance(error, UsageError):
        assert record["message"] == "x"
        assert record["evidence"] == ["pid 7"]


def test_how_far_it_is(tmp_path: Path) -> None:
    with operation(settings(tmp_path), "take", "job", {}) as op:
        op.phase("open")
        assert read_progress(op.folder)["phase"] == "open", "the first is there at once"
        op.phase("pages")
        for done in range(1, 1001):
            op.progress(done, 1000, "n1")
        op.progress(7, 9, "n2")
        told = {"n1": {"done_bytes": 1000, "total_bytes": 1000}, "n2": {"done_bytes": 7, "total_bytes": 9}}
        eventually("the newest is told", lambda: read_progress(op.folder)["nodes"] == told, 20)
        assert read_progress(op.folder)["phase"] == "pages"
    assert sorted(path.name for path in op.folder.iterdir()) == ["operation.json"]


def test_progress_that_can_not_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with operation(settings(tmp_path), "take", "job", {}) as op:
        monkeypatch.setattr(progress_file.os, "open", full)
        op.phase("open")
        op.phase("pages")
        op.progress(1, 2)
        monkeypatch.undo()
    assert read_record(op.folder)["outcome"] == "ok"


def test_it_is_not_written_all_the_time(tmp_path: Path) -> None:
    """A second is a second, however many changes come."""
    written: list[float] = []
    file = ProgressFile(tmp_path / "progress.json", timedelta(seconds=0.2))
    original = file._write

    def counted() -> None:
        written.append(time.monotonic())
        original()

    file._write = counted  # type: ignore[method-assign]
    begun = time.monotonic()
    file.phase("pages")
    while time.monotonic() < begun + 1:
        file.done("n1", 1, 2)
        time.sleep(0.001)
    file.close(remove=True)
    file.close(remove=True)
    assert 2 <= len(written) <= 2 + (time.monotonic() - begun) / 0.2
    assert all(later - earlier > 0.15 for earlier, later in pairwise(written[1:]))


def test_old_records_are_deleted_but_none_of_an_operation_that_runs(tmp_path: Path) -> None:
    few = settings(tmp_path, keep_operations=2)

    def name(number: int) -> str:
        return f"20991231T00000{number}Z-take-00000000"

    with operation(few, "take", "first", {}, name=name(0)) as first:
        for number in range(1, 5):
            with operation(few, "take", f"job{number}", {}, name=name(number)):
                pass
    kept = {read_record(folder)["job"] for folder in (tmp_path / "operations").iterdir()}
    assert kept == {"first", "job3", "job4"}
    with operation(few, "take", "last", {}, name=name(5)):
        pass
    assert not first.folder.exists()
