"""Documents of the state directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cw_snapshot.coordinator.state import read_json, write_json


def test_a_document_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one stays, nothing else is left, and the error names the path."""
    path = tmp_path / "job.json"
    write_json(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*job\.json"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["job.json"]
