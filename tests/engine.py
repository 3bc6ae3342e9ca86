"""Driving cw-snapshot as a user does: its command line, real jobs, a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import JobRecord, JobStore
from cw_snapshot.snapshot import procfs, shadows, tree, work_folder
from tests.criu_variants import USUAL, Variant, criu_of

COUNTER = "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.02)"
"""A job that counts, one line each 20 ms."""

COMMAND = Path(sys.prefix) / "bin" / "cw-snapshot"
TRAIN = Path(__file__).parent.parent / "examples" / "train_ddp.py"
WAIT_SECONDS = 90


@cache
def require_criu(variant: Variant) -> None:
    assert os.geteuid() == 0, "the root tier needs root"
    works, printed = criu_of(variant).check()
    assert works, f"criu does not work here: {printed}"


def eventually(what: str, condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Wait until a condition holds; returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Engine:
    """One cw-snapshot installation, as far as its state goes."""

    def __init__(self, folder: Path, variant: Variant = USUAL) -> None:
        self.variant = variant
        self.folder = folder
        self.state = folder / "state"
        self.repository = folder / "repository"
        self.environment = {
            **os.environ,
            **variant.environment(),
            "CW_SNAPSHOT_STATE_DIR": str(self.state),
            "CW_SNAPSHOT_REPOSITORY": str(self.repository),
            "OMP_NUM_THREADS": "1",
        }
        self._others: list[subprocess.Popen[bytes]] = []
        self._shared_memory: set[Path] = set()
        self.ok("repo", "init")

    # -- commands -----------------------------------------------------------------------

    def start(self, *words: str | Path, **popen: Any) -> subprocess.Popen[bytes]:
        """A command in the background."""
        environment = popen.pop("env", self.environment)
        return subprocess.Popen([COMMAND, *map(str, words)], env=environment, **popen)

    def run(self, *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
        done = subprocess.run(
            [COMMAND, *map(str, words)],
            env=env or self.environment,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
        done = self.run(*words, cwd=cwd, env=env)
        assert done.code == 0, f"{words}: exit {done.code}\n{done.out}\n{done.err}"
        return done

    def job(self, name: str, command: Sequence[str | Path], *options: str, cwd: Path | None = None) -> None:
        self.ok("run", "--job-id", name, *options, "--", *command, cwd=cwd)

    def counter(self, name: str = "counter") -> None:
        """Start a job that counts, and wait for its first lines."""
        self.job(name, [sys.executable, "-u", "-c", COUNTER])
        self.wait_lines(name, 3)

    def take(self, name: str, *options: str) -> Any:
        report = self.ok("take", name, "--json", *options).json
        scans, reads = report["criu"]["scans_answered"], report["criu"]["reads_answered"]
        answered, none = (reads, scans) if self.variant.old_kernel else (scans, reads)
        assert answered and not none, "criu asks for pages in the way of this kernel, and is masked"
        return report

    def plan(self, name: str, *options: str) -> Any:
        return self.ok("take", name, "--plan", "--json", *options).json

    def restore(self, snapshot: str, *options: str) -> Any:
        return self.ok("restore", snapshot, "--json", *options).json

    def stop(self, name: str) -> None:
        """Kill a job as a power cut would, and wait until nothing of it is left."""
        record = self.store.find(name).record
        self._kill(record)
        eventually(f"{name} is gone", lambda: not alive(record.init))

    def _kill(self, record: JobRecord) -> None:
        with suppress(OSError, procfs.ProcessGoneError, tree.TreeGoneError):
            self._shared_memory |= shared_memory_files(record.root_pid)
        with suppress(ProcessLookupError):
            os.kill(record.init, signal.SIGKILL)

    # -- what is there ------------------------------------------------------------------

    @property
    def store(self) -> JobStore:
        return JobStore(self.state)

    def root(self, name: str) -> int:
        return self.store.running(name).root_pid

    def log(self, name: str) -> list[str]:
        path = Path(self.store.find(name).record.log)
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def wait_lines(self, name: str, more: int) -> list[str]:
        """Wait until the job has written so many more lines than now."""
        before = len(self.log(name))
        eventually(f"{more} more lines of {name}", lambda: len(self.log(name)) >= before + more)
        return self.log(name)

    def torch_job(self, name: str, out: Path, *options: str, workers: int = 2) -> None:
        """Start the DDP training of examples/ with torchrun."""
        launcher = [Path(sys.prefix) / "bin" / "torchrun", "--nproc-per-node", "2", TRAIN]
        self.job(name, [*launcher, "--out", out, "--board", "--workers", str(workers), *options])

    def other_process(self, command: Sequence[str | Path], **popen: Any) -> subprocess.Popen[bytes]:
        """A process beside the engine, ended with the test."""
        process = subprocess.Popen([*map(str, command)], **popen)
        self._others.append(process)
        return process

    def assert_clean(self) -> None:
        """Nothing of our takes and restores is left on the machine."""
        eventually("nothing is left", lambda: not self.leftovers(), 10)

    def leftovers(self) -> set[str]:
        """Work folders and shadows of our operations that nobody uses."""
        operations = {p.name for p in (self.state / "operations").glob("*")}
        folders = work_folder.abandoned_folders()
        found = {str(f) for f in folders if f.name.partition(".")[2] in operations}
        inits = {view.record.init for view in self.store.all()}
        for pid in shadows.find_shadows():
            with suppress(procfs.ProcessGoneError):
                if procfs.read_stat(pid).ppid in inits:
                    found.add(f"shadow {pid}")
        return found

    def clean_up(self) -> None:
        for view in self.store.all():
            if alive(view.record.init):
                self._kill(view.record)
        for process in self._others:
            if process.poll() is None:  # with its children: the end of a shell does not end its jobs
                with suppress(procfs.ProcessGoneError):
                    tree.kill(tree.find(process.pid).members)
                process.kill()
            process.wait()
        for path in self._shared_memory:
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()


def shadows_of(engine: Engine, name: str) -> list[int]:
    """The shadows of a job's processes: they become children of its cw-init."""
    found = []
    for pid in shadows.find_shadows():
        with suppress(procfs.ProcessGoneError):
            if procfs.read_stat(pid).ppid == engine.store.find(name).record.init:
                found.append(pid)
    return found


def shared_memory_files(root: int) -> set[Path]:
    """The linked files of /dev/shm that a tree has mapped."""
    found = set()
    for member in tree.find(root).members:
        with suppress(procfs.ProcessGoneError):  # jobs have short-lived children
            names = [m.name for m in procfs.mappings(member.pid)]
            found |= {Path(n) for n in names if n.startswith("/dev/shm/") and not n.endswith("(deleted)")}
    return found


def alive(pid: int) -> bool:
    try:
        return procfs.read_stat(pid).state not in "ZX"
    except procfs.ProcessGoneError:
        return False


def states(root: int) -> dict[int, str]:
    """State letters of a whole tree."""
    return {m.pid: procfs.read_stat(m.pid).state for m in tree.find(root).members}


def losses(out: Path) -> dict[int, list[str]]:
    """The lines of each rank of a training, in the order in which they were written."""
    return {int(p.suffix[1:]): p.read_text().splitlines() for p in sorted(out.glob("losses.*"))}


def consecutive(lines: Sequence[str]) -> bool:
    """Whether lines of a counter follow one another."""
    numbers = [int(n) for n in lines]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def steps(lines: Sequence[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.split()[1] != "final"]
