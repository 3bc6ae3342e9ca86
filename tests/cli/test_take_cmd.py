"""What `take` says before and after."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cw_snapshot.cli.take_cmd import pause_warning
from cw_snapshot.cli.take_report import print_plan, print_report
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs
from cw_snapshot.coordinator.jobs import JobRecord
from cw_snapshot.coordinator.take_report import Collapsing, TakeReport
from cw_snapshot.snapshot.collapse import Collapse
from cw_snapshot.snapshot.predict import ForkSize, JobFacts, Pace, PauseParts, Prediction, Rates, predict
from tests.cli.conftest import Run

FACTS = JobFacts(
    processes=2,
    threads=4,
    descriptors=20,
    connections=0,
    mappings=100,
    forks=(ForkSize(1 << 18, 0), ForkSize(0, 512, pinned_bytes=64 << 20)),
    private_bytes=2 << 30,
    shared_bytes=128 << 20,
    carried_bytes=0,
)
RATES = Rates(256 << 20, "earlier takes of this job", stored_share=0.25)
PREDICTED = predict(FACTS, Pace(cores=2, measured=True), RATES)


def at(seconds: float) -> Prediction:
    """A prediction of such a pause."""
    nothing = PauseParts(*[0.0] * len(fields(PauseParts)))
    return replace(PREDICTED, parts=replace(nothing, base=seconds))


def test_a_pause_far_from_the_prediction() -> None:
    assert pause_warning(at(0.05), 0.2) == ""
    assert "predicted as 50 ms" in pause_warning(at(0.05), 0.4)
    assert pause_warning(at(2.0), 4.0) == ""
    assert pause_warning(None, 9.0) == pause_warning(PREDICTED, None) == ""


def test_a_plan_shows_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    would = Collapsing(Collapse(candidates=512, growth_bytes=3 << 20, seconds=2.7), 0.3, 0.1)
    print_plan(TakeReport("llama", predicted=PREDICTED, collapsing=would))
    out = capsys.readouterr().out
    for text in (
        "2 processes",
        "4 threads",
        "20 descriptors",
        "100 mappings",
        "page tables of 1.0 GiB in 4 KiB pages",
        "512 huge pages",
        "64.0 MiB pinned memory",
        "128.0 MiB shared memory",
        "machine factor 1.00",
        "at most 2.0 GiB extra",
        "2.1 GiB to read and hash, at most 2.1 GiB to store, about 544.0 MiB",
        "256.0 MiB/s (earlier takes of this job)",
        "pause 300 ms -> 100 ms",
        "at most 3.0 MiB more memory",
    ):
        assert text in out, text
    assert "TCP connections" not in out  # what costs nothing is left out


def test_a_report_compares(capsys: pytest.CaptureFixture[str]) -> None:
    report = TakeReport("llama", snapshot="S", pause_seconds=0.3, predicted=at(0.25), durable_seconds=7.0)
    done = Collapse(
        candidates=3, collapsed=1, failed=Counter(EINVAL=2), stopped="memory is short", seconds=1.0
    )
    report.collapsing = Collapsing(done, 0.4, 0.25)
    print_report(report)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["pause", "300", "ms", "predicted", "250", "ms"] in lines
    assert [
        "durable",
        "after",
        "7.0",
        "s",
        "predicted",
        *f"{PREDICTED.durable_seconds:.1f} s".split(),
    ] in lines
    assert any("EINVAL" in line for line in lines)
    assert any("short" in line for line in lines)
    print_report(replace(report, pause_seconds=None))  # with --stop
    assert "predicted 250 ms" not in capsys.readouterr().out


def test_without_a_job(run: Run) -> None:
    assert run("take").code == 2
    assert run("take", "nobody").code == 6


def test_of_a_job_that_has_ended(run: Run, ended_job: JobRecord) -> None:
    done = run("take", "done")
    assert done.code == 6
    assert "done" in done.err


def test_what_is_for_one_node(run: Run, state: Path) -> None:
    job = ClusterJob("llama", 0, ["n1", "n2"], ["train"], "2026-01-02T03:04:05+00:00")
    ClusterJobs(state).save(job)
    for option in ("--plan", "--collapse"):
        done = run("take", "llama", option)
        assert done.code == 2
        assert "several nodes" in done.err
