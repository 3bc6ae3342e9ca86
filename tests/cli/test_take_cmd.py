"""What `take` says before and after."""

from __future__ import annotations

from dataclasses import replace

from cw_snapshot.cli.take_cmd import pause_warning
from cw_snapshot.coordinator.jobs import JobRecord
from cw_snapshot.snapshot.predict import Prediction
from tests.cli.conftest import Run

PREDICTED = Prediction(
    processes=2,
    threads=2,
    private_bytes=0,
    shared_bytes=0,
    pinned_bytes=0,
    page_table_bytes=0,
    pause_seconds=0.05,
)


def test_a_pause_far_from_the_prediction() -> None:
    assert pause_warning(PREDICTED, 0.2) == ""
    assert "predicted as 50 ms" in pause_warning(PREDICTED, 0.4)
    assert pause_warning(replace(PREDICTED, pause_seconds=2.0), 4.0) == ""
    assert pause_warning(None, 9.0) == pause_warning(PREDICTED, None) == ""


def test_without_a_job(run: Run) -> None:
    assert run("take").code == 2
    assert run("take", "nobody").code == 6


def test_of_a_job_that_has_ended(run: Run, ended_job: JobRecord) -> None:
    done = run("take", "done")
    assert done.code == 6
    assert "done" in done.err
