"""`ps` lists running jobs, with --all the others too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cw_snapshot.coordinator.jobs import JobRecord, JobStore
from tests.cli.conftest import Run


def test_ended_jobs(run: Run, ended_job: JobRecord) -> None:
    assert run("ps", "--json").json == {"schema": "cw-snapshot/ps/1", "jobs": [], "cluster_jobs": []}
    (job,) = run("ps", "--all", "--json").json["jobs"]
    assert (job["id"], job["state"], job["exit_code"]) == ("done", "ended", 7)
    text = run("ps", "--all").out
    assert "train --fast" in text
    assert "JOB" in text.splitlines()[0]


def test_a_command_with_control_characters(run: Run, state: Path, ended_job: JobRecord) -> None:
    command = ["train\x1b[31m", "x" * 1000]
    JobStore(state).save(replace(ended_job, command=command))
    text = run("ps", "--all").out
    assert "\x1b" not in text
    assert "train?[31m" in text
    assert max(map(len, text.splitlines())) < 350
    assert run("ps", "--all", "--json").json["jobs"][0]["command"] == command
