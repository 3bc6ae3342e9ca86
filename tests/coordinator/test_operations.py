"""The record of an operation never decides how the operation ends."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator import operations
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.errors import UsageError


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
    with operation(tmp_path, "take", "job", {}) as op:
        monkeypatch.setattr(operations, "write_json", full)
    assert "No space left" in op.unwritten
    monkeypatch.undo()
    with pytest.raises(UsageError, match="first") as caught, operation(tmp_path, "take", "job", {}):
        monkeypatch.setattr(operations, "write_json", full)
        raise UsageError(what="first")
    assert "No space left" in caught.value.evidence[0]
