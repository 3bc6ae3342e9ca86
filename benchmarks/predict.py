"""How well the pause of a take is predicted: processes of many shapes, each taken once.

The shapes are drawn by a seeded generator: memory on small and huge pages, threads, descriptors,
shared memory, mappings, trees of processes. Nothing of an earlier take helps: each is another job.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pause import engine
from benchmarks.report import Report, Row, arguments, at_least
from tests.build import compile_c
from tests.engine import Engine, eventually

SEED = 20260101
TAKES, QUICK_TAKES = 40, 8
WITHIN = 1.5
"""Predicted and actual pause may differ by this factor ..."""
SHARE = 0.90
"""... in so many of the takes."""
MOST_MIB = 2048
"""Private memory of all processes of a job."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Arguments of benchmarks/jobs/shape.c."""

    mib: int
    pages: str
    threads: int
    descriptors: int
    shared_mib: int
    mappings: int
    processes: int
    memory: str

    def command(self) -> list[str]:
        return [str(value) for value in asdict(self).values()]


def between(draw: random.Random, low: int, high: int) -> int:
    """As often between 10 and 100 as between 100 and 1000."""
    return round(low * (high / low) ** draw.random())


def sometimes(draw: random.Random, share: float, low: int, high: int, otherwise: int) -> int:
    return between(draw, low, high) if draw.random() < share else otherwise


def shapes(count: int) -> list[Shape]:
    draw = random.Random(SEED)  # noqa: S311  # reproducible, not secret
    return [shape(draw) for _ in range(count)]


def shape(draw: random.Random) -> Shape:
    """Most jobs have much of one or two things and little of the others."""
    processes = sometimes(draw, 0.5, 2, 16, 1)
    memory = draw.choice(("own", "forked"))
    total = between(draw, 16, MOST_MIB)
    return Shape(
        mib=max(1, total if memory == "forked" else total // processes),
        pages=draw.choice(("small", "small", "huge", "mixed")),
        threads=sometimes(draw, 0.4, 2, 200, 1) // processes or 1,
        descriptors=sometimes(draw, 0.4, 8, 2000, 4) // processes,
        shared_mib=sometimes(draw, 0.35, 4, 512, 0),
        mappings=sometimes(draw, 0.4, 16, 5000, 0) // processes,
        processes=processes,
        memory=memory,
    )


def take(e: Engine, program: Path, number: int, wanted: Shape) -> dict[str, Any]:
    """Start a job of a shape, take it once and end it."""
    name = f"shape-{number}"
    e.job(name, [program, *wanted.command()])
    eventually(f"{name} is ready", lambda: "ready" in e.log(name))
    report = e.take(name, "--max-pause", "60s")
    e.stop(name)
    return {
        "shape": asdict(wanted),
        "predicted": report["predicted"],
        "compared": report["compared"],
        "pause_parts_seconds": report["pause_parts_seconds"],
    }


def error(pair: dict[str, float]) -> float:
    """By which factor predicted and actual differ; 1 is exact."""
    ratio = pair["actual"] / pair["predicted"]
    return max(ratio, 1 / ratio)


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("predict")
    with tempfile.TemporaryDirectory() as folder, engine() as e:
        program = compile_c([Path("benchmarks/jobs/shape.c")], Path(folder) / "shape", "-O2", "-lpthread")
        for number, wanted in enumerate(shapes(QUICK_TAKES if options.quick else TAKES)):
            sample = take(e, program, number, wanted)
            pair = sample["compared"]["pause_seconds"]
            told = f"{pair['actual'] * 1e3:6.0f} ms, predicted {pair['predicted'] * 1e3:6.0f}"
            print(f"{told}  {' '.join(wanted.command())}", file=sys.stderr, flush=True)
            report.samples.append(sample)
    errors = [error(sample["compared"]["pause_seconds"]) for sample in report.samples]
    durable = [error(sample["compared"]["durable_seconds"]) for sample in report.samples]
    within = sum(e <= WITHIN for e in errors) / len(errors)
    notes = f"of {len(errors)} takes within a factor {WITHIN:g}"
    report.add(at_least("pause_error", 100 * within, unit="%", least=100 * SHARE, notes=notes))
    report.add(Row("pause_error_median", median(errors), "x"))
    report.add(Row("pause_error_worst", max(errors), "x"))
    report.add(Row("durable_error_median", median(durable), "x", notes="without an earlier take"))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
