"""Which records are kept, how operations stand, and who asked for them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator.operation_records import (
    OperationNotFoundError,
    find_operation,
    host,
    standing,
    summary,
    to_forget,
)
from cw_snapshot.coordinator.who import who, who_text
from cw_snapshot.snapshot import procfs

NOW = datetime(2026, 6, 15, 12, 0, 0, tzinfo=UTC)
YEAR = timedelta(days=365)


def name(days: float, ending: str = "") -> str:
    return f"{NOW - timedelta(days=days):%Y%m%dT%H%M%SZ}-take-0000000a{ending}"


def never(_: str) -> bool:
    return False


def test_the_newest_are_kept() -> None:
    names = [name(3), name(1), name(2), name(4, ".0")]
    assert to_forget(names, NOW, 2, YEAR, never) == [name(4, ".0"), name(3)]
    assert to_forget(names, NOW, 4, YEAR, never) == []


def test_the_young_are_kept() -> None:
    names = [name(181), name(180.001), name(179.999), name(1)]
    assert to_forget(names, NOW, 100, timedelta(days=180), never) == names[:2]


def test_what_runs_is_kept_and_what_is_not_ours_too() -> None:
    names = ["notes.txt", "0000", name(300), name(200)]
    assert to_forget(names, NOW, 1, timedelta(days=1), lambda n: n == name(300)) == [name(200)]


def here(**others: Any) -> dict[str, Any]:
    pid = os.getpid()
    command = {"pid": pid, "starttime": procfs.read_stat(pid).starttime, "boot": procfs.boot_id()}
    return {"outcome": "running", "command": {**command, **others}, "who": {"host": host()}}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "unknown"),
        ({"outcome": "ok"}, "ok"),
        (here(), "running"),
        (here(starttime=1), "died"),
        (here(boot="of yesterday"), "died"),
        ({**here(boot="another"), "who": {"host": "another"}}, "elsewhere"),
        ({"outcome": "running"}, "died"),
    ],
)
def test_standing(record: dict[str, Any], expected: str) -> None:
    assert standing(record) == expected


def write(state: Path, op: str, **record: Any) -> Path:
    folder = state / "operations" / op
    folder.mkdir(parents=True)
    (folder / "operation.json").write_text(json.dumps({"job": "j", "outcome": "ok", **record}))
    return folder


def test_a_part_is_found_where_the_whole_is_not(tmp_path: Path) -> None:
    part = write(tmp_path, name(1, ".0"))
    assert find_operation(tmp_path, "latest") == part
    assert find_operation(tmp_path, name(1)) == part
    whole = write(tmp_path, name(1))
    write(tmp_path, name(1, ".1"))
    for wanted in ("latest", "latest:j", name(1), name(1)[:12]):
        assert find_operation(tmp_path, wanted) == whole
    assert find_operation(tmp_path, name(1, ".0")) == part
    with pytest.raises(OperationNotFoundError):
        find_operation(tmp_path, "latest:other")


def test_summary(tmp_path: Path) -> None:
    folder = write(tmp_path, name(1), **here(starttime=1), result={"snapshot": "s", "pages": {}})
    at = {"phase": "pages", "phase_begun": "x", "nodes": {"n1": {"done_bytes": 1, "total_bytes": 2}}}
    (folder / "progress.json").write_text(json.dumps(at))
    found = summary(folder)
    assert (found["standing"], found["phase"], found["snapshot"]) == ("died", "pages", "s")
    assert found["progress"]["n1"]["done_bytes"] == 1
    assert "result" not in found
    (folder / "operation.json").write_text("{")
    assert summary(folder)["standing"] == "unknown"


def test_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    found = who({})
    assert found == {"user": "root", "uid": 0, "host": host()}
    assert who_text(found) == f"root@{host()}"
    found = who({"SUDO_USER": "alice"})
    assert found["sudo_user"] == "alice"
    assert who_text(found) == f"alice (as root)@{host()}"
    assert who({"SUDO_USER": "root"}) == {"user": "root", "uid": 0, "host": host()}
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert who({})["user"] == "4000000"
    assert who_text({}) == "-"
