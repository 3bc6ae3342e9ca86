"""`wait` exits with the job's status."""

from __future__ import annotations

from cw_snapshot.coordinator.jobs import JobRecord
from tests.cli.conftest import Run


def test_status(run: Run, ended_job: JobRecord) -> None:
    assert run("wait", "done").code == 7
    assert run("wait", "done", "--json").json["exit_code"] == 7
