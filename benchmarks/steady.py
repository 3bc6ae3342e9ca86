"""How much of its step rate a training keeps while it is taken again and again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.pause import engine
from benchmarks.report import Report, Row, arguments
from tests.engine import Engine, eventually, losses

INTERVAL_SECONDS = 30.0
GOAL = 0.90


def steps_in(out: Path, seconds: float) -> float:
    """Steps per second over some time."""
    begin, before = time.monotonic(), len(losses(out)[0])
    time.sleep(seconds)
    return (len(losses(out)[0]) - before) / (time.monotonic() - begin)


def steps_with_take(e: Engine, out: Path, interval: float) -> float:
    """Steps per second over one interval that begins with a take."""
    begin, before = time.monotonic(), len(losses(out)[0])
    e.take("ddp")
    left = interval - (time.monotonic() - begin)
    if left > 0:
        time.sleep(left)
    return (len(losses(out)[0]) - before) / (time.monotonic() - begin)


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("steady")
    takes, interval = (2, 10.0) if options.quick else (6, INTERVAL_SECONDS)
    with engine() as e:
        out = e.folder / "out"
        command = [sys.executable, "-u", Path("examples/train_ddp.py").absolute(), "--out", out]
        e.job("ddp", [*command, "--steps", "10000000", "--times"], "--nproc-per-node", "2")
        eventually("it trains", lambda: len(losses(out).get(0, [])) > 50)
        e.take("ddp")  # the first stores everything; from then on it is what a schedule costs
        kept, with_takes, without = [], [], []
        for _ in range(takes):
            without.append(steps_in(out, interval))
            with_takes.append(steps_with_take(e, out, interval))
            kept.append(with_takes[-1] / without[-1])
    ratio = median(kept)
    report.add(
        Row(
            f"steps_kept_{interval:g}s_interval",
            median(with_takes),
            "steps/s",
            "the same job without takes",
            median(without),
            ratio,
            f"ratio >= {GOAL}",
            ratio >= GOAL,
            f"{takes} takes",
        )
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
