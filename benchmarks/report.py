"""Rows, tables and JSON of a benchmark."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from cw_snapshot.cli.tables import print_table
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import find_criu


@dataclass(frozen=True)
class Row:
    """One number beside its peer's."""

    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    goal: str = ""
    ok: bool | None = None
    notes: str = ""


def against(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str,
    peer: str,
    most: float | None = None,
) -> Row:
    """A row with the ratio ours / theirs of the rounds of one run; `most` is the goal, if any."""
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    goal = "" if most is None else f"ratio <= {most:.4g}"
    ok = None if most is None else ratio <= most
    return Row(name, median(ours), unit, peer, median(theirs), ratio, goal, ok)


def at_most(name: str, value: float, *, unit: str, most: float, notes: str = "") -> Row:
    """A row with an absolute goal."""
    return Row(name, value, unit, goal=f"<= {most:g}", ok=value <= most, notes=notes)


def machine() -> dict[str, Any]:
    """The machine of a run."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "?")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(procfs.meminfo()["MemTotal"] / (1 << 30), 1),
        "kernel": platform.release(),
        "criu": find_criu().version_text,
        "load": os.getloadavg()[0],
    }


@dataclass
class Report:
    """The rows of one benchmark."""

    bench: str
    rows: list[Row] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Single measurements behind the rows, for whoever wants to look closer."""

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def finish(self, target: Path | None) -> int:
        """Print the table, write the JSON. Returns 0, also when a goal was missed: a benchmark
        measures, it does not judge."""
        heads = ("ROW", "VALUE", "PEER", "RATIO", "GOAL", "")
        print_table(heads, [_cells(row) for row in self.rows])
        if target is not None:
            rows = [asdict(row) for row in self.rows]
            document = {"bench": self.bench, "machine": machine(), "rows": rows, "samples": self.samples}
            target.write_text(json.dumps(document, indent=1) + "\n")
        return 0


def _cells(row: Row) -> tuple[str, ...]:
    peer = "" if row.peer_value is None else f"{row.peer_value:.4g} {row.unit} ({row.peer})"
    ratio = "" if row.ratio is None else f"{row.ratio:.4f}" if row.ratio < 0.1 else f"{row.ratio:.2f}"
    verdict = "" if row.ok is None else "ok" if row.ok else "MISSED"
    return (
        row.name,
        f"{row.value:.4g} {row.unit}",
        peer,
        ratio,
        row.goal,
        " ".join((verdict, row.notes)).strip(),
    )


def at_least(name: str, value: float, *, unit: str, least: float, notes: str = "") -> Row:
    """A row with an absolute goal to reach."""
    return Row(name, value, unit, goal=f">= {least:g}", ok=value >= least, notes=notes)


def arguments(description: str) -> argparse.Namespace:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="end within a minute, with fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    return parser.parse_args()
