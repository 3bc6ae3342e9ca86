"""From the command to the job's first step, out of the repository, against plain criu out of a
tmpfs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pause import engine
from benchmarks.peer import dump, fresh_folder, restore
from benchmarks.report import Report, against, arguments
from tests.engine import Engine, alive, eventually, losses


@dataclass(frozen=True)
class Job:
    """A training to restore."""

    row: str
    ranks: int
    width: int
    """Of its layers; the memory of a rank grows with the square."""
    goal: float | None = None


JOBS = (
    Job("restore_to_first_step", 2, 4096, 1.0),
    Job("restore_to_first_step_1rank", 1, 4096),
    Job("restore_to_first_step_small", 2, 512),
)
"""Memory that is mostly tensors (1 GiB a rank), the same in one rank, and a job that is mostly
libraries and forked loader workers, which plain criu leaves shared."""

PEER = "criu restore from images on tmpfs"


def first_step(out: Path, work: Callable[[], int]) -> tuple[float, int]:
    """Seconds until rank 0 has written a new line, and the pid of the job's init."""
    before = len(losses(out)[0])
    path = out / "losses.0"
    size = path.stat().st_size
    begin = time.monotonic()
    init = work()
    while path.stat().st_size == size:
        time.sleep(0.0005)
    seconds = time.monotonic() - begin
    assert len(losses(out)[0]) > before
    return seconds, init


def end(init: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    eventually("it is gone", lambda: not alive(init))


def measure(e: Engine, rounds: int, job: Job) -> tuple[list[float], list[float]]:
    out = e.folder / "out"
    command = [sys.executable, "-u", Path("examples/train_ddp.py").absolute(), "--out", out]
    words = [*command, "--steps", "1000000", "--width", str(job.width), "--times"]
    e.job("ddp", words, "--nproc-per-node", str(job.ranks))
    eventually("it trains", lambda: len(losses(out).get(0, [])) > 20)
    root = e.root("ddp")
    images = fresh_folder("restore")
    dump(root, images)
    e.take("ddp")
    e.stop("ddp")

    def ours() -> int:
        e.restore("latest:ddp")
        return e.store.find("ddp").record.init

    mine, peers = [], []
    for index in range(rounds):
        seconds, init = first_step(out, ours)
        mine.append(seconds)
        end(init)
        seconds, init = first_step(out, lambda index=index: restore(images, e.folder / f"status-{index}"))  # type: ignore[misc]
        peers.append(seconds)
        end(init)
    return mine, peers


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("restore")
    for job in JOBS:
        with engine() as e:
            mine, peers = measure(e, 2 if options.quick else 7, job)
        report.add(against(job.row, mine, peers, unit="s", peer=PEER, most=job.goal))
    shutil.rmtree(fresh_folder("restore"))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
