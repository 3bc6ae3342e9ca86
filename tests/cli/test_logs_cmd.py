"""`logs` prints what the job has printed."""

from __future__ import annotations

from cw_snapshot.coordinator.jobs import JobRecord
from tests.cli.conftest import Run


def test_logs(run: Run, ended_job: JobRecord) -> None:
    assert run("logs", "done").out == "first\nlast\n"
    assert run("logs", "-f", "done").out == "first\nlast\n"
    assert run("logs", "done", "--json").json["output"] == "first\nlast\n"
