"""`rm` deletes snapshots, all that are named or none."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_rm(run: Run, snapshot: str) -> None:
    assert run("rm", "best", "nothing").code == 6
    assert len(run("list", "--json").json["snapshots"]) == 1
    assert run("rm", "best", "--json").json["deleted"] == [f"llama/{snapshot}"]
    assert run("list", "--json").json["snapshots"] == []
