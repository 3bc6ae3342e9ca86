"""`list`, `show`, `verify` and `rm` of a repository with a snapshot that somebody else stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import NodeManifest
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter
from tests.cli.conftest import Run


@pytest.fixture
def snapshot(run: Run, repository: Path) -> str:
    run("repo", "init")
    opened = Repository.open(str(repository))
    with TreeWriter(opened, LocalBroker(opened.load_index()), threads=1, memory=128 << 20) as writer:
        manifest = writer.finish({"processes": [], "files": [], "platform": {}})
    nodes = [NodeManifest("node1", manifest.digest, manifest.size)]
    summary = {"take": {"pause_seconds": 0.02, "pages": {"seen_bytes": 4096}}, "processes": 3, "job": None}
    commit = opened.commit(job="llama", incarnation=2, nodes=nodes, indexes=[], name="best", summary=summary)
    return commit.snapshot


def test_list(run: Run, snapshot: str) -> None:
    (listed,) = run("list", "--json").json["snapshots"]
    assert (listed["snapshot"], listed["job"], listed["name"]) == (snapshot, "llama", "best")
    text = run("list").out
    for word in (snapshot, "llama", "best", "20 ms", "4.0 KiB"):
        assert word in text
    assert run("list", "other", "--json").json["snapshots"] == []


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


def test_verify_and_rm(run: Run, snapshot: str) -> None:
    assert run("verify", snapshot, "--json").json["ok"] is True
    assert run("verify", snapshot, "--sample=120%").code == 2
    assert run("rm", "best", "nothing").code == 6
    assert run("rm", "best", "--json").json["deleted"] == [f"llama/{snapshot}"]
    assert run("list", "--json").json["snapshots"] == []
