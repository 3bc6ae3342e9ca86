"""`report` tells what is inside, and writes where it was told to."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cw_snapshot.coordinator import report_bundle
from cw_snapshot.coordinator.jobs import JobRecord
from cw_snapshot.coordinator.operations import operation
from cw_snapshot.coordinator.settings import Settings
from tests.cli.conftest import Run


@pytest.fixture
def operation_id(state: Path, ended_job: JobRecord, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(report_bundle, "all_checks", list)
    with operation(Settings(state_dir=state), "take", ended_job.id, {"note": "TOKEN=Hunter2Hunter2"}) as op:
        pass
    return op.id


def test_report(run: Run, operation_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("report", "latest", "--json")
    assert done.code == 0
    path = tmp_path / f"cw-snapshot-report-{operation_id}.tar.gz"
    assert done.json["path"] == str(path)
    assert done.json["bytes"] == path.stat().st_size
    assert done.json["standing"] == "ok"
    assert done.json["redacted"] == {"named value": 1}
    assert "job.json" in done.json["members"]
    assert "1 x named value" in done.err
    before = path.read_bytes()
    assert run("report", "latest").code == 3
    assert path.read_bytes() == before
    assert run("report", "latest", "--force").code == 0
    assert run("report", operation_id[:-2], "--output", str(tmp_path / "other")).code == 0
    assert b"Hunter2" not in gzip.decompress((tmp_path / "other").read_bytes())


def test_no_such_operation(run: Run, operation_id: str) -> None:
    done = run("report", "1999", "--json")
    assert done.code == 6
    assert done.json["evidence"] == [operation_id]


def test_stdout_is_for_one(run: Run, operation_id: str) -> None:
    assert run("report", "latest", "--output", "-", "--json").code == 2


def test_root_only(run: Run, operation_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert run("report", "latest").code == 9
