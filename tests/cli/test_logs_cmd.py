"""`logs` prints what the job has printed."""

from __future__ import annotations

from pathlib import Path

from cw_snapshot.coordinator.jobs import JobRecord
from tests.cli.conftest import Run


def test_logs(run: Run, ended_job: JobRecord) -> None:
    assert run("logs", "done").out == "first\nlast\n"
    assert run("logs", "-f", "done").out == "first\nlast\n"
    assert run("logs", "done", "--json").json["output"] == "first\nlast\n"
    assert run("logs", "done", "--tail", "1").out == "last\n"
    assert run("logs", "done", "--node", "n1").code == 2


def test_a_log_that_is_gone(run: Run, ended_job: JobRecord) -> None:
    Path(ended_job.log).unlink()
    for words in (["logs", "done"], ["logs", "-f", "done"], ["logs", "done", "--json"]):
        done = run(*words)
        assert done.code == 6
        assert ended_job.log in done.err


def test_follow_has_no_end_and_json_is_one_document(run: Run, ended_job: JobRecord) -> None:
    assert run("logs", "done", "-f", "--json").code == 2
