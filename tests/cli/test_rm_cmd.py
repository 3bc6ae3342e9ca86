"""`rm` deletes snapshots, all that are named or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.storage.commit import SnapshotRef
from cw_snapshot.storage.errors import StoreUnreachableError
from cw_snapshot.storage.repository import Repository
from tests.cli.conftest import Run


def test_rm(run: Run, snapshot: str) -> None:
    assert run("rm", "best", "nothing").code == 6
    assert len(run("list", "--json").json["snapshots"]) == 1
    assert run("rm", "best", "--json").json["deleted"] == [f"llama/{snapshot}"]
    assert run("list", "--json").json["snapshots"] == []


def test_one_named_twice(run: Run, snapshot: str) -> None:
    assert run("rm", "best", snapshot, "latest:llama", "--json").json["deleted"] == [f"llama/{snapshot}"]


def test_deleting_that_stops_half_way(
    run: Run, snapshot: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Repository.open(str(repository))
    first = opened.read_commit(opened.find("best"))
    other = opened.commit(job="other", incarnation=0, nodes=first.nodes)
    delete = Repository.delete_snapshot

    def fail_at_other(self: Repository, ref: SnapshotRef) -> None:
        if ref.job == "other":
            raise StoreUnreachableError(store="it", what="gone")
        delete(self, ref)

    monkeypatch.setattr(Repository, "delete_snapshot", fail_at_other)
    document = run("rm", "best", other.snapshot, "--json").json
    assert document["exit_code"] == 8
    assert document["evidence"] == [f"deleted before: llama/{snapshot}"]
