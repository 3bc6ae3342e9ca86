"""The main job on a virtual cluster: train on two nodes, take, train on, kill, destroy the nodes, restore on
two others, and compare the losses bit by bit.

Drives the command line as a user would. The nodes of a lab are network namespaces of one machine; what
would be different on another machine besides the addresses is made different: the job's files in /dev/shm
are moved aside and its old PIDs are given to other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.lab import labs, namespaces

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
        self.lab = f"demo-{os.getpid()}"
        self.environment = {
            **os.environ,
            "CW_SNAPSHOT_STATE_DIR": str(folder / "state"),
            "CW_SNAPSHOT_REPOSITORY": str(folder / "repository"),
            "CW_SNAPSHOT_CLUSTER": str(labs.FOLDER / self.lab / "cluster.json"),
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
        launcher = [str(BIN / "torchrun"), "--nproc-per-node", "1"]
        self.command("run", "--job-id", job, "--nodes", "n1,n2", "--", *launcher, *script)

    def ended(self, out: Path) -> bool:
        """Whether both ranks have written their last line."""
        return [rows[-1][1] for rows in self.lines(out).values() if rows] == ["final", "final"]

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
                raise DemoError(f"not within {seconds:.0f} s: {what}\n{self.log()[-4000:]}")
            time.sleep(0.05)

    def log(self) -> str:
        """What the jobs have printed."""
        logs = (labs.FOLDER / self.lab).glob("nodes/*/trees/*/jobs/*/*/output.log")
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')}" for path in sorted(logs))

    def processes(self) -> list[int]:
        """PIDs of what runs on the nodes but their agents."""
        lab = labs.find(self.lab)
        agents = {int(path.read_text()) for path in lab.folder.glob("nodes/*/agent.pid")}
        nodes = [node.namespace for node in lab.plan.members]
        return sorted(namespaces.processes(nodes).keys() - agents)

    def destroy(self, *names: str) -> None:
        """Power off nodes: everything on them is killed, their agents too, and their namespaces go."""
        lab = labs.find(self.lab)
        gone = [lab.node(name).namespace for name in names]
        namespaces.end_processes(gone, timedelta(seconds=20))
        namespaces.delete(gone)


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
        for _ in range(10):  # somebody else may be faster
            # The kernel hands out the number after this one next (proc(5), ns_last_pid).
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
            strangers.append(subprocess.Popen(["sleep", "600"]))
            if strangers[-1].pid == pid:
                break
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
    print("\n-- four nodes, each with two NICs and an agent")
    stack.callback(clean_up, demo)
    demo.command("lab", "up", "--nodes", "4", "--nics", "2", "--lab", demo.lab)
    demo.command("repo", "init", show=False)

    print("\n-- the training, undisturbed: 2 nodes, 2 ranks, 4 loader workers, dropout, shared memory")
    demo.train("undisturbed", reference_out)
    demo.wait("the end of the training", lambda: demo.ended(reference_out))
    reference, _, reference_final = split(demo.lines(reference_out))

    print("\n-- the same again: take it while it trains")
    demo.train(JOB, out)
    demo.wait("step 50", lambda: demo.step(out) >= 50)
    taken = demo.command("take", JOB, "--json")
    facts = taken["node_facts"].values()
    seen, stored = (sum(f["stats"][key] for f in facts) / 2**20 for key in ("seen_bytes", "stored_bytes"))
    print(
        f"paused {taken['pause_seconds'] * 1e3:.0f} ms, durable after {taken['durable_seconds']:.1f} s; "
        f"{sum(f['processes'] for f in facts)} processes on {len(taken['nodes'])} nodes, "
        f"{seen:.0f} MiB seen, {stored:.0f} MiB stored"
    )
    later = demo.step(out) + 50
    demo.wait(f"step {later}", lambda: demo.step(out) >= later)

    print("\n-- kill every process, destroy both nodes, take PIDs and shared memory away; restore on others")
    pids = demo.processes()
    files = shared_memory_files(pids)
    demo.destroy("n1", "n2")
    moved = stack.enter_context(moved_aside(files))
    strangers = stack.enter_context(occupied(pids))
    print(
        f"killed {len(pids)} processes; {strangers} of their PIDs are others' now; "
        f"moved {moved} files out of /dev/shm"
    )
    dead = ["--assume-dead", "n1", "--assume-dead", "n2"]
    restoring = time.monotonic()
    restored = demo.command("restore", f"latest:{JOB}", "--nodes", "n3,n4", *dead, "--json")
    for tree in restored["trees"]:
        moves = ", ".join(f"{old} -> {new}" for old, new in tree["addresses"].items())
        print(f"{tree['from']} -> {tree['to']}: {moves}")
    print(f"runs again after {time.monotonic() - restoring:.1f} s")
    demo.wait("the end of the training", lambda: demo.ended(out))

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
        try:
            show(demo, stack)
        except DemoError as error:
            print(f"\ndemo failed: {error}", file=sys.stderr)
            return 1
    return 0


def clean_up(demo: Demo) -> None:
    """Take the lab down, with all that runs in it, and those of demos that were killed."""
    for lab in [demo.lab, *(lab.name for lab in labs.every())]:
        kind, _, pid = lab.partition("-")
        if kind == "demo" and (lab == demo.lab or not Path(f"/proc/{pid}").exists()):
            with suppress(labs.LabNotFoundError):
                labs.down(lab)


if __name__ == "__main__":
    sys.exit(main())
