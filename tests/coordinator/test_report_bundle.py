"""A report is made of whatever there is, in bounded size, and never over another file."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator import report_bundle
from cw_snapshot.coordinator.operation_records import OperationNotFoundError, find_operation, standing
from cw_snapshot.coordinator.operations import operation
from cw_snapshot.coordinator.redaction import HIDDEN
from cw_snapshot.coordinator.report_bundle import (
    Bundle,
    ReportExistsError,
    head_and_tail,
    make_report,
    write_report,
)
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.errors import UsageError
from cw_snapshot.snapshot import work_folder

PLANTED = "Hunter2-Hunter2"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_bundle, "all_checks", list)


def settings(state: Path) -> Settings:
    return Settings(state_dir=state, repository=f"s3://me:{PLANTED}@host/bucket")


def failed(state: Path, job: str = "job", **details: Any) -> Path:
    with pytest.raises(UsageError), operation(Settings(state_dir=state), "take", job, details) as op:
        op.result = {"findings": [{"code": "x"}]}
        raise UsageError(what=f"could not open https://u:{PLANTED}@host")
    return op.folder


def unpacked(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        assert all(m.mode == 0o600 for m in members)
        files = {m.name.partition("/")[2]: tar.extractfile(m) for m in members}
        return {name: file.read().decode() for name, file in files.items() if file}


def test_a_failed_operation(tmp_path: Path) -> None:
    folder = failed(tmp_path)
    # Named in the record, bare in the log.
    (folder / "dump.log").write_text(f"(00.1) Error (x): {PLANTED}\n")
    report = make_report(folder, settings(tmp_path))
    members = unpacked(report.archive())
    assert report.standing == "usage"
    assert json.loads(members["operation.json"])["result"]["findings"] == [{"code": "x"}]
    assert members["logs/dump.log"] == f"(00.1) Error (x): {HIDDEN}\n"
    assert {"versions.json", "machine.json", "doctor.json", "settings.json"} <= members.keys()
    assert "job.json" in report.missing
    assert "job.json" in members["README.txt"]
    assert "2 x password in a URL" in members["README.txt"]
    assert not any(PLANTED in text for text in members.values())


def test_a_folder_without_anything(tmp_path: Path) -> None:
    folder = tmp_path / "operations" / "20260101T000000Z-take-12345678"
    folder.mkdir(parents=True)
    report = make_report(folder, settings(tmp_path))
    assert report.standing == "unknown"
    assert report.missing["operation.json"] == "does not exist"
    (folder / "operation.json").write_text(f'{{"half": "TOKEN={PLANTED}')
    members = make_report(folder, settings(tmp_path)).members
    assert members["operation.json"].startswith('{"half": "TOKEN=')
    assert not any(PLANTED in text for text in members.values())


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    folder = failed(tmp_path)
    other = tmp_path / "shadow"
    other.write_text("root:x")
    (folder / "dump.log").symlink_to(other)
    os.mkfifo(folder / "guard.log")
    report = make_report(folder, settings(tmp_path))
    assert not any("root:x" in text for text in report.members.values())
    assert {"logs/dump.log", "logs/guard.log"} <= report.missing.keys()


def test_an_operation_under_way_and_one_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_folder, "PARENT", tmp_path)
    with operation(Settings(state_dir=tmp_path), "take", "job", {}) as op:
        images = tmp_path / f"cw-snapshot.{op.id}" / "images"
        images.mkdir(parents=True)
        (images / "dump.log").write_text("under way\n")
        (images / "pages-1.img").write_text("memory\n")
        report = make_report(op.folder, settings(tmp_path))
        assert report.standing == "running"
        assert report.members["work/dump.log"] == "under way\n"
        assert not any("memory\n" in text for text in report.members.values())
        record = json.loads((op.folder / "operation.json").read_text())
        record["command"]["starttime"] += 1
        assert standing(record) == "died"


def test_long_logs_are_cut_at_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"line {n:04} TOKEN={PLANTED}" for n in range(1000)]
    log.write_text("\n".join(lines) + "\n")
    size = log.stat().st_size
    assert head_and_tail(log, size) == log.read_text()
    cut = head_and_tail(log, 1000)
    assert len(cut) < 1100
    assert cut.startswith(lines[0])
    assert cut.endswith(lines[-1] + "\n")
    assert {line for line in cut.splitlines() if line and "left out" not in line} <= set(lines)
    log.write_text("x" * 5000)
    assert "x" not in head_and_tail(log, 1000), "no line is whole"


def test_a_report_is_for_its_owner_and_replaces_nothing(tmp_path: Path) -> None:
    target = tmp_path / "report"
    bundle = Bundle("op", "take", "job", "ok", {"a": "1"})
    write_report(bundle, target, force=False)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(ReportExistsError):
        write_report(bundle, target, force=False)
    bundle.members["a"] = "2"
    write_report(bundle, target, force=True)
    assert unpacked(target.read_bytes()) == {"a": "2"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(target)
    write_report(bundle, link, force=True)
    assert not link.is_symlink(), "a link is replaced, what it names is not"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_finding_an_operation(tmp_path: Path) -> None:
    with pytest.raises(OperationNotFoundError):
        find_operation(tmp_path, "latest")
    first, second = failed(tmp_path, "one"), failed(tmp_path, "two")
    os.utime(first, (1, 1))
    assert find_operation(tmp_path, "latest") == second
    assert find_operation(tmp_path, "latest:one") == first
    assert find_operation(tmp_path, first.name) == first
    assert find_operation(tmp_path, first.name[:-1]) == first
    for wanted in ("", "2", "x", "latest:three"):
        with pytest.raises(OperationNotFoundError) as caught:
            find_operation(tmp_path, wanted)
        assert first.name in caught.value.evidence
