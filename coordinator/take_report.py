"""What a take has to tell: before, after, and both side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cw_snapshot.snapshot.collapse import Collapse
from cw_snapshot.snapshot.findings import Finding
from cw_snapshot.snapshot.journal import PluginStats
from cw_snapshot.snapshot.predict import Prediction
from cw_snapshot.storage.writer import WriteStats


@dataclass(frozen=True, slots=True)
class Collapsing:
    """What `--collapse` has done, or would do, and what it is good for."""

    collapse: Collapse
    pause_before: float
    """Predicted, in seconds."""
    pause_after: float

    def to_json(self) -> dict[str, Any]:
        return {
            **self.collapse.to_json(),
            "pause_seconds_before": round(self.pause_before, 4),
            "pause_seconds_after": round(self.pause_after, 4),
        }


@dataclass(slots=True)
class TakeReport:
    """What a take has to tell in the end."""

    job: str
    snapshot: str = ""
    pause_seconds: float | None = None
    """None with `--stop`: the job did not go on."""
    times: dict[str, float] = field(default_factory=dict)
    predicted: Prediction | None = None
    preflight_seconds: float = 0.0
    """Looking at the job before anything was stopped."""
    collapsing: Collapsing | None = None
    findings: list[Finding] = field(default_factory=list)
    processes: int = 0
    without_shadow: list[str] = field(default_factory=list)
    extra_memory_bytes: int = 0
    criu: PluginStats | None = None
    """How criu was answered by our library."""
    stats: WriteStats = field(default_factory=WriteStats)
    store_seconds: float = 0.0
    """From the end of the pause to the commit."""
    durable_seconds: float = 0.0
    stopped_job: bool = False

    def compared(self) -> dict[str, dict[str, float | None]]:
        """Predicted and actual side by side; of a prediction that is a bound, `at_most`."""
        p = self.predicted
        if p is None:
            return {}
        stats = self.stats
        return {
            "pause_seconds": {"predicted": round(p.pause_seconds, 4), "actual": self.pause_seconds},
            "durable_seconds": {
                "predicted": round(p.durable_seconds, 3),
                "actual": round(self.durable_seconds, 3),
            },
            "read_bytes": {"predicted": p.read_bytes, "actual": stats.seen_bytes},
            "stored_bytes": {
                "predicted": p.stored_bytes,
                "at_most": p.stored_most_bytes,
                "actual": stats.stored_bytes,
            },
            "extra_memory_bytes": {"at_most": p.extra_memory_bytes, "actual": self.extra_memory_bytes},
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "snapshot": self.snapshot,
            "pause_seconds": self.pause_seconds,
            "pause_parts_seconds": self.times,
            "predicted": self.predicted.to_json() if self.predicted else None,
            "compared": self.compared(),
            "preflight_seconds": round(self.preflight_seconds, 3),
            "collapse": self.collapsing.to_json() if self.collapsing else None,
            "findings": [f.to_json() for f in self.findings],
            "processes": self.processes,
            "without_shadow": self.without_shadow,
            "extra_memory_bytes": self.extra_memory_bytes,
            "criu": asdict(self.criu) if self.criu else None,
            "pages": asdict(self.stats),
            "store_seconds": round(self.store_seconds, 3),
            "durable_seconds": round(self.durable_seconds, 3),
            "stopped_job": self.stopped_job,
        }
