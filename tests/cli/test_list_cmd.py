"""`list` of a repository with one snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_list(run: Run, snapshot: str) -> None:
    (listed,) = run("list", "--json").json["snapshots"]
    assert (listed["snapshot"], listed["job"], listed["name"]) == (snapshot, "llama", "best")
    text = run("list").out
    for word in (snapshot, "llama", "best", "20 ms", "4.0 KiB"):
        assert word in text
    assert run("list", "other").code == 6


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json"])
def test_a_damaged_commit_hides_no_other(run: Run, snapshot: str, repository: Path, damage: bytes) -> None:
    (path,) = (p for p in repository.rglob(f"*{snapshot}*") if p.is_file())
    copy = path.with_name(path.name.replace(snapshot, "20260101T000000Z-00000001"))
    path.chmod(0o600)
    copy.write_bytes(damage)
    done = run("list", "--json")
    assert done.code == 7
    assert [s["snapshot"] for s in done.json["snapshots"]] == [snapshot]
    assert len(done.json["damaged"]) == 1
    done = run("show", "nothing")
    assert done.code == 6
    assert "1 damaged commits" in done.err
    assert "llama/20260101T000000Z-00000001" in done.err
