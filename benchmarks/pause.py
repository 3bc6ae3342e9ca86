"""How long a job stands still for a take, as the job itself feels it, against plain criu.

The worst stall is looked for over the whole life of the shadow, while the job dirties its memory
all the time: the pause itself, and the copy-on-write faults after it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.peer import dump, fresh_folder
from benchmarks.report import Report, Row, against, arguments, at_most
from tests.build import compile_c
from tests.engine import Engine, eventually, losses

PEER = "criu dump --leave-running to tmpfs"
SIZES_GIB = (0.25, 1.0, 4.0)
GOAL = {"small": 1 / 30, "huge": 1 / 80}
PER_GIB_MS = {"small": 15.0, "huge": 3.0}
SETTLE_SECONDS = 0.5
THREADS, PROCESSES = (8, 64, 512), (1, 8, 64)
QUICK_THREADS, QUICK_PROCESSES = (512,), (8,)
SHAPE_MIB = 16
"""Memory of each process where their number, or that of threads, is what is measured."""
SHAPE_GOAL = {"threads_512": 1.2, "processes_64": 2.0}


def worst_stall(log: Path, begin: float) -> float:
    """Milliseconds of the longest stall of a writer job that ended after `begin`."""
    stalls = [line.split() for line in log.read_text().splitlines() if line.startswith("stall")]
    return max((float(s[2]) / 1000 for s in stalls if float(s[1]) > begin), default=0.0)


@contextmanager
def engine() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="cw-bench-") as folder:
        made = Engine(Path(folder))
        try:
            yield made
        finally:
            made.clean_up()


def rounds_of(
    count: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Take turns, so that both feel the same machine."""
    mine, peers = [], []
    for _ in range(count):
        mine.append(ours())
        time.sleep(SETTLE_SECONDS)
        peers.append(theirs())
        time.sleep(SETTLE_SECONDS)
    return mine, peers


def one_process(program: Path, gib: float, pages: str, rounds: int) -> tuple[list[float], list[float], int]:
    """Stalls in ms of one process of `gib`, ours and the peer's; and the extra memory in bytes.

    A job on huge pages is started anew for each round: while a shadow lives the kernel splits the
    huge pages that the job writes to, so a second take would find small ones.
    """
    extra: list[int] = []
    with engine() as e:

        def start() -> Path:
            e.job("writer", [program, str(int(gib * 1024)), pages, "0", "0"])
            eventually("it is ready", lambda: "ready" in e.log("writer"))
            return Path(e.store.find("writer").record.log)

        def ours() -> float:
            if pages == "huge":
                e.stop("writer")
                start()
            begin = time.monotonic()
            extra.append(e.take("writer")["extra_memory_bytes"])
            return worst_stall(Path(e.store.find("writer").record.log), begin)

        def theirs() -> float:
            begin = time.monotonic()
            dump(e.root("writer"), fresh_folder("peer"))
            time.sleep(SETTLE_SECONDS)
            return worst_stall(Path(e.store.find("writer").record.log), begin)

        start()
        mine, peers = rounds_of(rounds, ours, theirs)
    shutil.rmtree(fresh_folder("peer"))
    return mine, peers, int(median(extra))


def many(program: Path, threads: int, processes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Stalls in ms of a small job of so many processes, the first of which has so many threads."""
    with engine() as e:
        e.job("writer", [program, str(SHAPE_MIB), "small", str(threads - 1), str(processes - 1)])
        eventually("it is ready", lambda: "ready" in e.log("writer"))
        log = Path(e.store.find("writer").record.log)

        def stall(work: Callable[[], object]) -> float:
            begin = time.monotonic()
            work()
            time.sleep(SETTLE_SECONDS)
            return worst_stall(log, begin)

        def theirs() -> None:
            dump(e.root("writer"), fresh_folder("peer"))

        mine, peers = rounds_of(rounds, lambda: stall(lambda: e.take("writer")), lambda: stall(theirs))
    shutil.rmtree(fresh_folder("peer"))
    return mine, peers


def training(rounds: int) -> tuple[list[float], list[float]]:
    """Longest pause between two steps of a DDP job (2 ranks with 2 loader workers each, and their
    launcher), less a usual step."""
    with engine() as e:
        out = e.folder / "out"
        command = [sys.executable, "-u", Path("examples/train_ddp.py").absolute(), "--out", out]
        e.job("ddp", [*command, "--steps", "1000000", "--times"], "--nproc-per-node", "2")
        eventually("it trains", lambda: len(losses(out).get(0, [])) > 50)

        def stall(work: Callable[[], object]) -> float:
            begin = time.time()
            work()
            time.sleep(SETTLE_SECONDS)  # a gap ends with the next step
            times = [float(line.split()[3]) for line in losses(out)[0] if len(line.split()) > 3]
            gaps = [b - a for a, b in pairwise(times) if a > begin - SETTLE_SECONDS]
            return (max(gaps) - median(gaps)) * 1000

        def theirs() -> None:
            dump(e.root("ddp"), fresh_folder("peer"))

        mine, peers = rounds_of(rounds, lambda: stall(lambda: e.take("ddp")), lambda: stall(theirs))
    shutil.rmtree(fresh_folder("peer"))
    return mine, peers


def slope(medians: dict[float, float]) -> float:
    """Milliseconds per GiB between the smallest and the largest size."""
    low, high = min(medians), max(medians)
    return max(0.0, (medians[high] - medians[low]) / (high - low))


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("pause")
    rounds = 2 if options.quick else 7
    sizes = SIZES_GIB[:2] if options.quick else SIZES_GIB
    with tempfile.TemporaryDirectory() as folder:
        program = compile_c([Path("benchmarks/jobs/writer.c")], Path(folder) / "writer", "-O2", "-lpthread")
        for pages, suffix in (("small", ""), ("huge", "_thp")):
            medians: dict[float, float] = {}
            for gib in sizes:
                mine, peers, extra = one_process(program, gib, pages, rounds)
                medians[gib] = median(mine)
                most = GOAL[pages] if gib == SIZES_GIB[-1] else None
                name = f"gap_{gib:g}GiB{suffix}"
                report.add(against(name, mine, peers, unit="ms", peer=PEER, most=most))
                report.add(Row(f"extra_memory_{gib:g}GiB{suffix}", extra / (1 << 20), "MiB"))
            report.add(at_most(f"per_GiB{suffix}", slope(medians), unit="ms/GiB", most=PER_GIB_MS[pages]))
        shapes = [(f"threads_{n}", n, 1) for n in (QUICK_THREADS if options.quick else THREADS)]
        shapes += [(f"processes_{n}", 1, n) for n in (QUICK_PROCESSES if options.quick else PROCESSES)]
        for name, threads, processes in shapes:
            mine, peers = many(program, threads, processes, rounds)
            report.add(against(name, mine, peers, unit="ms", peer=PEER, most=SHAPE_GOAL.get(name)))
    mine, peers = training(rounds)
    report.add(against("gap_ddp_6proc", mine, peers, unit="ms", peer=PEER))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
