"""What earlier takes tell, from their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator.history import ASSUMED_RATE_OF_CORE, PastTake, past_takes, rates


def past(
    job: str = "llama", repository: str = "/r", seconds: float = 2.0, ratio: float | None = 1.0
) -> PastTake:
    return PastTake(job, repository, 1000, 250, seconds, ratio)


def test_without_history() -> None:
    found = rates([], "llama", "/r", 4)
    assert found.bytes_per_second == 4 * ASSUMED_RATE_OF_CORE
    assert found.source.startswith("assumed")
    assert (found.stored_share, found.pause_factor) == (None, 1.0)


def test_the_job_tells_more_than_others() -> None:
    takes = [past("other", seconds=1.0), past(seconds=4.0), past(seconds=2.0), past(seconds=2.0)]
    found = rates(takes, "llama", "/r", 4)
    assert found.source == "earlier takes of this job"
    assert found.bytes_per_second == 500  # the median
    assert found.stored_share == 0.25
    found = rates(takes, "new", "/r", 4)
    assert found.source == "earlier takes into this repository"
    assert found.bytes_per_second == 500
    assert found.stored_share is None  # other jobs' content says nothing
    assert rates(takes, "new", "/elsewhere", 4).source.startswith("assumed")
    assert rates(takes, "llama", "/elsewhere", 4).source.startswith("assumed")


def test_only_the_newest_count() -> None:
    takes = [past(seconds=1.0)] * 5 + [past(seconds=100.0)] * 20
    assert rates(takes, "llama", "/r", 1).bytes_per_second == 1000


@pytest.mark.parametrize(
    ("ratios", "factor"),
    [
        ([1.5], 1.0),
        ([1.5, 1.5], 1.0),
        ([1.4, 9.0, 1.4], 1.4),
        ([8.0, 9.0, 9.0], 2.0),
        ([0.1, 0.1, 0.1], 0.5),
        ([None, None, None], 1.0),
    ],
)
def test_pauses_that_were_longer_than_the_model(ratios: list[float | None], factor: float) -> None:
    takes = [past(ratio=ratio) for ratio in ratios]
    assert rates(takes, "llama", "/r", 1).pause_factor == pytest.approx(factor)
    assert rates(takes, "other", "/r", 1).pause_factor == 1.0


def write(state: Path, name: str, record: Any) -> None:
    folder = state / "operations" / name
    folder.mkdir(parents=True)
    (folder / "operation.json").write_text(record if isinstance(record, str) else json.dumps(record))


def test_reading_the_records(tmp_path: Path) -> None:
    assert list(past_takes(tmp_path)) == []
    result = {
        "pause_seconds": 0.3,
        "predicted": {"pause_seconds": 0.2, "rates": {"pause_factor": 2.0}},
        "pages": {"seen_bytes": 7, "stored_bytes": 3},
        "store_seconds": 1.5,
    }
    good = {"kind": "take", "outcome": "ok", "job": "a", "repository": "/r", "result": result}
    write(tmp_path, "1-take-a", good)
    write(tmp_path, "2-take-b", good | {"result": result | {"pause_seconds": None}, "job": "b"})
    write(tmp_path, "3-take-c", good | {"outcome": "running"})
    write(tmp_path, "4-take-d", "{")
    write(tmp_path, "5-take-e", good | {"result": {"pause_seconds": 0.3}})  # of an older version
    write(tmp_path, "6-restore-f", good)
    (tmp_path / "operations" / "7-take-g").mkdir()
    newest, oldest = past_takes(tmp_path)
    assert newest == PastTake("b", "/r", 7, 3, 1.5, None)
    # 0.2 s had been predicted with a factor of 2: the model alone said 0.1 s.
    assert oldest == PastTake("a", "/r", 7, 3, 1.5, pytest.approx(3.0))
