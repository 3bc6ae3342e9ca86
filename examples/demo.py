"""The main job on one machine: train, take, train on, kill, restore, and compare the losses bit by bit.

Drives the command line as a user would. What would be different on another node is made different:
the job's files in /dev/shm are moved aside and its old PIDs are given to other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

BIN = Path(sys.prefix) / "bin"
TRAIN = Path(__file__).with_name("train_ddp.py")
JOB = "demo"
Losses = dict[tuple[int, int], str]
"""Loss of a rank at a step, as a hexadecimal float."""


class DemoError(Exception):
    pass


class Demo:
    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        self.steps = steps
        self.environment = {
            **os.environ,
            "CW_SNAPSHOT_STATE_DIR": str(folder / "state"),
            "CW_SNAPSHOT_REPOSITORY": str(folder / "repository"),
            "OMP_NUM_THREADS": "1",
        }

    def command(self, *words: str, show: bool = True) -> Any:
        """Run a command of cw-snapshot, shown without `--json`; returns what it printed."""
        if show:
            print("$ cw-snapshot", *(w for w in words if w != "--json"), flush=True)
        done = subprocess.run(
            [BIN / "cw-snapshot", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoError(f"cw-snapshot {words[0]}: exit status {done.returncode}\n{done.stdout}")
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def train(self, job: str, out: Path) -> None:
        script = [str(TRAIN), "--out", str(out), "--board", "--steps", str(self.steps), "--sleep", "0.02"]
        self.command("run", "--job-id", job, "--", str(BIN / "torchrun"), "--nproc-per-node", "2", *script)

    def lines(self, out: Path) -> dict[int, list[list[str]]]:
        return {
            int(p.suffix[1:]): [line.split() for line in p.read_text().splitlines()]
            for p in sorted(out.glob("losses.*"))
        }

    def step(self, out: Path) -> int:
        """The last step that both ranks have written."""
        ranks = self.lines(out).values()
        if any(rows and rows[-1][1] == "final" for rows in ranks):
            raise DemoError("the training has ended already: give it more --steps")
        return min((int(rows[-1][1]) if rows else 0 for rows in ranks), default=0) if len(ranks) == 2 else 0

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = self.command("logs", JOB, show=False)
                raise DemoError(f"not within {seconds:.0f} s: {what}\n{logs[-4000:]}")
            time.sleep(0.05)

    def processes(self, job: str) -> list[int]:
        """PIDs of a job on this machine."""
        found = {j["id"]: j for j in self.command("ps", "--json", show=False)["jobs"]}
        pids = [found[job]["init"]] if found[job]["state"] == "running" else []
        for pid in pids:
            with suppress(FileNotFoundError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    pids.extend(map(int, (task / "children").read_text().split()))
        return pids


def shared_memory_files(pids: list[int]) -> set[Path]:
    """Files of /dev/shm that processes have mapped."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = line.split(maxsplit=5)[-1]
                if path.startswith("/dev/shm/") and not path.endswith("(deleted)"):
                    found.add(Path(path))
    return found


@contextmanager
def occupied(pids: list[int]) -> Iterator[int]:
    """Give PIDs to other processes; yields how many could be had."""
    strangers = []
    for pid in pids:
        # The kernel hands out the number after this one next (proc(5), ns_last_pid).
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        strangers.append(subprocess.Popen(["sleep", "600"]))
    try:
        yield len({s.pid for s in strangers} & set(pids))
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


@contextmanager
def moved_aside(files: set[Path]) -> Iterator[int]:
    """Move files of /dev/shm into a folder beside, as if this were another node."""
    aside = Path(tempfile.mkdtemp(prefix="cw-demo-aside.", dir="/dev/shm"))
    moved = [f for f in files if f.exists()]
    for file in moved:
        shutil.move(file, aside / file.name)
    try:
        yield len(moved)
    finally:
        shutil.rmtree(aside)


def split(lines: dict[int, list[list[str]]]) -> tuple[Losses, Losses, dict[int, str]]:
    """Losses before the restore and after, and the final parameter hash of each rank.

    A restored rank appends to its file from the step of the snapshot: the steps count back there.
    """
    before: Losses = {}
    after: Losses = {}
    final = {}
    for rank, rows in lines.items():
        target, last = before, 0
        for _, step, value in rows:
            if step == "final":
                final[rank] = value
                continue
            if int(step) <= last:
                target = after
            target[rank, int(step)] = value
            last = int(step)
    return before, after, final


def compare(reference: Losses, before: Losses, after: Losses) -> int:
    """Print the losses side by side; returns how many differ."""
    both = sorted(before.keys() & after.keys())
    shown = [*both[:2], *both[len(both) // 2 : len(both) // 2 + 2], *sorted(after)[-1:]]
    print(f"\n{'rank':>4} {'step':>5}  {'undisturbed':22} {'taken, killed':22} {'restored':22}")
    for key in shown:
        row = [losses.get(key, "") for losses in (reference, before, after)]
        print(f"{key[0]:>4} {key[1]:>5}  {row[0]:22} {row[1]:22} {row[2]:22}")
    return sum(reference.get(k) != v for losses in (before, after) for k, v in losses.items())


def show(demo: Demo, stack: ExitStack) -> None:
    begin = time.monotonic()
    reference_out, out = demo.folder / "undisturbed", demo.folder / "out"
    print("\n-- the training, undisturbed: 2 ranks, 4 loader workers, dropout, shared memory")
    demo.command("repo", "init", show=False)
    demo.train("undisturbed", reference_out)
    demo.command("wait", "undisturbed")
    reference, _, reference_final = split(demo.lines(reference_out))

    print("\n-- the same again: take it while it trains")
    demo.train(JOB, out)
    demo.wait("step 50", lambda: demo.step(out) >= 50)
    taken = demo.command("take", JOB, "--json")
    pages = taken["pages"]
    print(
        f"paused {taken['pause_seconds'] * 1e3:.0f} ms, durable after {taken['durable_seconds']:.1f} s; "
        f"{taken['processes']} processes, {pages['seen_bytes'] / 2**20:.0f} MiB seen, "
        f"{pages['stored_bytes'] / 2**20:.0f} MiB stored"
    )
    later = demo.step(out) + 50
    demo.wait(f"step {later}", lambda: demo.step(out) >= later)

    print("\n-- kill every process, take its PIDs and its shared memory away, restore")
    pids = demo.processes(JOB)
    files = shared_memory_files(pids)
    os.kill(pids[0], signal.SIGKILL)
    demo.wait("the job is gone", lambda: not any(Path(f"/proc/{p}").exists() for p in pids))
    moved = stack.enter_context(moved_aside(files))
    strangers = stack.enter_context(occupied(pids))
    print(
        f"killed {len(pids)} processes; {strangers} of their PIDs are others' now; "
        f"moved {moved} files out of /dev/shm"
    )
    restored = demo.command("restore", f"latest:{JOB}", "--json")
    print(f"runs again after {sum(restored['phase_seconds'].values()):.1f} s")
    demo.command("wait", JOB)

    before, after, final = split(demo.lines(out))
    different = compare(reference, before, after)
    steps = sorted({step for _, step in after})
    if not after or steps[0] >= later:
        raise DemoError("the restored job did not go back to the step of the snapshot")
    if different or len(final) != 2 or final != reference_final:
        raise DemoError(f"{different} losses differ; parameters {final} against {reference_final}")
    again = len(before.keys() & after.keys())
    print(
        f"\n{len(after)} losses after the restore, steps {steps[0]} to {steps[-1]}; "
        f"{again} of them computed twice, once on each side of the kill"
    )
    print(f"parameters at the end: {final[0][:16]} and {reference_final[0][:16]}")
    print(f"paused {taken['pause_seconds'] * 1e3:.0f} ms; the demo took {time.monotonic() - begin:.0f} s")
    print("identical")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the training (1000)")
    parser.add_argument("--keep", type=Path, help="keep repository, logs and losses in this new folder")
    args = parser.parse_args()
    if args.keep is not None:
        args.keep.mkdir(parents=True)
    folder = args.keep.absolute() if args.keep else Path(tempfile.mkdtemp(prefix="cw-demo."))
    demo = Demo(folder, args.steps)
    with ExitStack() as stack:
        if args.keep is None:
            stack.callback(shutil.rmtree, folder)
        stack.callback(stop_jobs, demo)
        try:
            show(demo, stack)
        except DemoError as error:
            print(f"\ndemo failed: {error}", file=sys.stderr)
            return 1
    return 0


def stop_jobs(demo: Demo) -> None:
    with suppress(DemoError):
        for job in demo.command("ps", "--json", show=False)["jobs"]:
            if job["state"] == "running":
                with suppress(ProcessLookupError):
                    os.kill(job["init"], signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
