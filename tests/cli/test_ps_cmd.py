"""`ps` lists running jobs, with --all the others too."""

from __future__ import annotations

from cw_snapshot.coordinator.jobs import JobRecord
from tests.cli.conftest import Run


def test_ended_jobs(run: Run, ended_job: JobRecord) -> None:
    assert run("ps", "--json").json == {"schema": "cw-snapshot/ps/1", "jobs": []}
    (job,) = run("ps", "--all", "--json").json["jobs"]
    assert (job["id"], job["state"], job["exit_code"]) == ("done", "ended", 7)
    text = run("ps", "--all").out
    assert "train --fast" in text
    assert "JOB" in text.splitlines()[0]
