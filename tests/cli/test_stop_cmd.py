"""`stop` of a job that has ended."""

from __future__ import annotations

import pytest

from cw_snapshot.coordinator.jobs import JobRecord
from tests.cli.conftest import Run


def test_ended(run: Run, ended_job: JobRecord) -> None:
    """What a script wants is true already."""
    done = run("stop", "done", "--json")
    assert done.code == 0
    assert (done.json["state"], done.json["exit_code"]) == ("ended", 7)
    assert run("stop", "nobody").code == 6


@pytest.mark.parametrize("grace", ["soon", "-1s"])
def test_grace(run: Run, ended_job: JobRecord, grace: str) -> None:
    done = run("stop", "done", f"--grace={grace}")
    assert done.code == 2
    assert "--grace" in done.err


def test_a_grace_that_is_too_long(run: Run, ended_job: JobRecord) -> None:
    done = run("stop", "done", "--grace", "99999999999999d")
    assert done.code == 2
    assert "--grace" in done.err
