"""What earlier takes of this node tell about the next one, from the records of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from cw_snapshot.coordinator.state import StateDamagedError, read_json
from cw_snapshot.snapshot.predict import Rates

ASSUMED_RATE_OF_CORE = 80 << 20
"""Bytes per second that one core reads, hashes and compresses beside a job that computes, when no
earlier take tells: tensors, of which little is known or zero. Conservative."""
_LOOKED_AT = 200
"""Newest records that are looked at: 0.1 ms each."""
_USED = 5
"""Newest takes that count; their median is used."""
_LEAST_FOR_FACTOR = 3
"""Fewer pauses than that say nothing: each may have met a busy moment."""
_LARGEST_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class PastTake:
    """One take that succeeded."""

    job: str
    repository: str
    seen_bytes: int
    stored_bytes: int
    store_seconds: float
    """From the end of the pause to the commit."""
    pause_ratio: float | None
    """Actual pause against the model's, without what history had added to it."""


def past_takes(state_dir: Path) -> Iterator[PastTake]:
    """Takes that succeeded on this node, from the newest to the oldest."""
    folder = state_dir / "operations"
    names = sorted((p.name for p in folder.glob("*-take-*")), reverse=True) if folder.is_dir() else []
    for name in names[:_LOOKED_AT]:
        try:
            record = read_json(folder / name / "operation.json")
        except StateDamagedError:
            continue
        if found := _past_take(record):
            yield found


def _past_take(record: Any) -> PastTake | None:
    try:
        if record["kind"] != "take" or record["outcome"] != "ok":
            return None
        result = record["result"]
        return PastTake(
            record["job"],
            record["repository"],
            result["pages"]["seen_bytes"],
            result["pages"]["stored_bytes"],
            result["store_seconds"],
            _pause_ratio(result),
        )
    except (KeyError, TypeError):  # of a version that kept less
        return None


def _pause_ratio(result: Mapping[str, Any]) -> float | None:
    actual, predicted = result["pause_seconds"], result["predicted"]
    if actual is None or predicted is None:
        return None
    modelled = predicted["pause_seconds"] / predicted["rates"]["pause_factor"]
    return float(actual / modelled) if modelled else None


def rates(takes: Sequence[PastTake], job: str, repository: str | None, cores: int) -> Rates:
    """What to expect of the next take of `job` into `repository`.

    :param takes: from the newest to the oldest.
    """
    of_job = [t for t in takes if t.job == job and t.repository == (repository or t.repository)][:_USED]
    into = [t for t in takes if t.repository == repository][:_USED]
    factor = _pause_factor([t.pause_ratio for t in takes if t.job == job and t.pause_ratio][:_USED])
    for chosen, source in (
        (of_job, "earlier takes of this job"),
        (into, "earlier takes into this repository"),
    ):
        if rate := _rate(chosen):
            share = _stored_share(chosen) if chosen is of_job else None
            return Rates(rate, source, share, factor)
    return Rates(float(ASSUMED_RATE_OF_CORE * cores), "assumed, no earlier take", None, factor)


def _rate(takes: Sequence[PastTake]) -> float | None:
    found = [t.seen_bytes / t.store_seconds for t in takes if t.seen_bytes and t.store_seconds > 0]
    return median(found) if found else None


def _stored_share(takes: Sequence[PastTake]) -> float | None:
    found = [t.stored_bytes / t.seen_bytes for t in takes if t.seen_bytes]
    return median(found) if found else None


def _pause_factor(ratios: Sequence[float]) -> float:
    if len(ratios) < _LEAST_FOR_FACTOR:
        return 1.0
    return min(_LARGEST_FACTOR, max(1 / _LARGEST_FACTOR, median(ratios)))
