"""Stopping and continuing a job: what others do meanwhile, and who must not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator.deadlines import JobSize, take_limits
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.take import TakeRequest, take
from cw_snapshot.snapshot import procfs, tree
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.snapshot.tree import StopTimeoutError
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import WriteStats
from tests.engine import COUNTER, Engine, alive, eventually, shadows_of, states

pytestmark = pytest.mark.root


class Quiet:
    def phase(self, name: str) -> None: ...
    def pages(self, stats: WriteStats, total: int) -> None: ...


@contextmanager
def paused_and_gone(root: int, name: str) -> Iterator[NodeTake]:
    """A take of which nothing is stored: the pause, and shadows until the end."""
    limits = take_limits(JobSize(1, 1 << 20), timedelta(seconds=10), stop=False)
    node = NodeTake(tree.find(root), criu=find_criu(), name=f"test-{os.getpid()}-{name}", limits=limits)
    try:
        for phase in (node.open, node.stop, node.skeleton, node.shadow, node.go, node.streams):
            phase()
        yield node
    finally:
        node.abort()


# -- shells with job control, children, zombies ------------------------------------------

SHELL = f"set -m; {sys.executable} -u -c '{COUNTER}' & wait; echo left"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("takes", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_shell_with_job_control_notices_nothing(engine: Engine, takes: int) -> None:
    """Its worker must never be stopped while the shell runs, or it says "Stopped" and goes on. And no
    take may leave a child, for the next one would dump it."""
    engine.job("shell", ["bash", "-c", SHELL])
    engine.wait_lines("shell", 3)
    root = engine.root("shell")
    before = [m.pid for m in tree.find(root).members]
    assert len(before) == 2
    for number in range(takes):
        with paused_and_gone(root, str(number)):
            assert [m.pid for m in tree.find(root).members] == before, "no shadow and no zombie is a child"
        engine.wait_lines("shell", 3)
    assert [m.pid for m in tree.find(root).members] == before
    lines = engine.log("shell")
    assert lines == [str(n) for n in range(len(lines))], "the launcher has reported something"
    engine.assert_clean()


# -- tasks that can't be stopped ---------------------------------------------------------


class Vfork:
    """A job that is in a vfork until it is released."""

    def __init__(self, engine: Engine, program: Path) -> None:
        self._fifo = engine.folder / "fifo"
        os.mkfifo(self._fifo)
        self._fd = os.open(self._fifo, os.O_RDWR)
        engine.job("vfork", [program, self._fifo])
        self.root = engine.root("vfork")

    def waits(self) -> bool:
        return procfs.read_stat(self.root).state == "D"

    def release(self, times: int = 1) -> None:
        os.write(self._fd, b"x" * times)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def vfork(engine: Engine, built: dict[str, Path]) -> Iterator[Vfork]:
    job = Vfork(engine, built["vfork"])
    eventually("it is in a vfork", job.waits)
    try:
        yield job
    finally:
        job.close()


def test_a_vfork_without_end_is_given_up(engine: Engine, vfork: Vfork) -> None:
    done = engine.run("take", "vfork", "--json")
    assert (done.code, done.json["code"]) == (4, "stop-timeout")
    assert any(f"pid {vfork.root} (vfork): thread {vfork.root} is D" in e for e in done.json["evidence"])
    assert engine.ok("list", "--json").json["snapshots"] == []
    assert "T" not in states(vfork.root).values()
    vfork.release(20)
    engine.wait_lines("vfork", 10)
    assert alive(vfork.root)
    engine.assert_clean()


def test_a_vfork_that_ends_in_time_is_tried_again(
    engine: Engine, vfork: Vfork, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[StopTimeoutError] = []
    original = tree.stop

    def stop(*words: Any) -> tree.Tree:
        try:
            return original(*words)
        except StopTimeoutError as error:
            failed.append(error)
            assert "T" not in states(vfork.root).values(), "let go at once"
            vfork.release(500)  # from now on its vforks end at once
            raise

    monkeypatch.setattr(tree, "stop", stop)
    with paused_and_gone(vfork.root, "vfork"):
        assert failed, "the first try met the vfork"
    engine.wait_lines("vfork", 3)


def test_an_exited_main_thread_is_refused(engine: Engine, built: dict[str, Path]) -> None:
    engine.job("exited", [built["exited_main"]])
    engine.wait_lines("exited", 3)
    done = engine.run("take", "exited", "--json")
    assert done.code == 3
    assert f"pid {engine.root('exited')}" in "\n".join(done.json["evidence"])
    assert "main thread has ended" in "\n".join(done.json["evidence"])
    engine.wait_lines("exited", 3)


TRACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()  # PTRACE_SEIZE
print('traces', flush=True)
sys.stdin.read()
"""


def test_a_task_with_a_debugger_is_refused(engine: Engine) -> None:
    engine.counter()
    tracer = engine.other_process(
        [sys.executable, "-c", TRACER, str(engine.root("counter"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"traces\n"
    done = engine.run("take", "counter", "--json")
    assert done.code == 3
    assert f"traced by pid {tracer.pid}" in "\n".join(done.json["evidence"])
    assert tracer.poll() is None
    engine.wait_lines("counter", 3)


USERFAULTFD = """
import ctypes, itertools, time
assert ctypes.CDLL(None).syscall(323, 0) == 3
for n in itertools.count(): print(n, flush=True); time.sleep(0.02)
"""


def test_a_userfaultfd_is_refused(engine: Engine) -> None:
    engine.job("faults", [sys.executable, "-u", "-c", USERFAULTFD])
    engine.wait_lines("faults", 3)
    done = engine.run("take", "faults", "--json")
    assert done.code == 3
    assert "fd 3 -> anon_inode:[userfaultfd]" in "\n".join(done.json["evidence"])


# -- one instant -------------------------------------------------------------------------

# The position of a file is in the skeleton, the number in a page: torn, they differ.
ONE_INSTANT = """
import os, signal, sys, tempfile, threading, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
n = told = 0
while True:
    at = os.lseek(file, 0, os.SEEK_CUR)
    if at != n: print(f'torn: {at} is not {n}', flush=True); os._exit(3)
    n += 1
    os.lseek(file, n, os.SEEK_SET)
    if time.monotonic() > told + 0.02: told = time.monotonic(); print('ok', flush=True)
"""

PHASES = ("stop", "skeleton", "shadow")


def continued_after(phase: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, str]]:
    """Somebody sends SIGCONT to the whole job when a phase of the pause has ended; returns the states that
    were seen in a short while after."""
    seen = []
    original: Callable[[NodeTake], None] = getattr(NodeTake, phase)

    def then_continue(node: NodeTake) -> None:
        original(node)
        for member in node.tree.members:
            os.kill(member.pid, signal.SIGCONT)
        time.sleep(0.05)
        seen.append(states(node.tree.root.pid))

    monkeypatch.setattr(NodeTake, phase, then_continue)
    return seen


@pytest.mark.parametrize("phase", PHASES)
def test_a_foreign_sigcont_tears_nothing(engine: Engine, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skeleton and pages are of one instant, because criu holds the tasks until the shadows are made."""
    engine.job("instant", [sys.executable, "-u", "-c", ONE_INSTANT, engine.folder / "file"])
    engine.wait_lines("instant", 3)
    record = engine.store.running("instant")
    seen = continued_after(phase, monkeypatch)
    settings = Settings(
        state_dir=engine.state, repository=str(engine.repository), max_pause=timedelta(seconds=30)
    )
    request = TakeRequest("instant", record.root_pid, record)
    report = take(request, engine.store, Repository.open(engine.repository), settings, Quiet())
    assert seen
    if phase == "skeleton":
        assert set(seen[0].values()) <= {"t", "T"}, "held all the same"
    else:
        assert set(seen[0].values()) <= {"R", "S"}, "the signal has worked"
    lines = engine.wait_lines("instant", 3)
    engine.stop("instant")
    engine.restore(report.snapshot)
    lines = engine.wait_lines("instant", 5)
    assert set(lines) == {"ok"}
    engine.assert_clean()


# -- the end of everything ---------------------------------------------------------------


def test_the_init_of_a_job_can_end_while_a_shadow_lives(engine: Engine) -> None:
    """It can't before its last shadow is reaped: whoever holds shadows must not wait for their reader."""
    engine.counter()
    record = engine.store.running("counter")
    with paused_and_gone(record.root_pid, "init"):
        assert shadows_of(engine, "counter")
        os.kill(record.init, signal.SIGKILL)
        eventually("all of it is gone", lambda: not alive(record.init), 10)
        eventually("it is no zombie", lambda: not Path(f"/proc/{record.init}").exists(), 10)
        with pytest.raises(procfs.ProcessGoneError):
            procfs.read_stat(record.root_pid)
    engine.assert_clean()


def test_a_take_of_a_job_that_is_killed_with_its_init(engine: Engine) -> None:
    engine.job("large", [sys.executable, "-c", "import time; x = b'x' * (300 << 20); time.sleep(600)"])
    eventually(
        "it has begun", lambda: procfs.status_bytes(procfs.status(engine.root("large")), "RssAnon") > 3e8
    )
    record = engine.store.running("large")
    process = engine.start("take", "large", "--json", stdout=subprocess.PIPE, stderr=-3, text=True)
    eventually("its shadow is read", lambda: shadows_of(engine, "large"))
    os.kill(record.init, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 4, 5), out
    assert not alive(record.init)
    engine.assert_clean()
