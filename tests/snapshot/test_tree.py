"""Finding, stopping and continuing trees of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from cw_snapshot.snapshot import procfs, tree
from cw_snapshot.snapshot.tree import StopTimeoutError, TreeGoneError
from tests.engine import eventually, states

LIMIT = timedelta(seconds=5)


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


FAMILY = """
import os, time
if os.fork() == 0:
    os.fork()
else:
    print('ready', flush=True)
time.sleep(60)
"""
"""Three generations of one process each."""

FORKING = """
import os, time
print('ready', flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.01)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""


def test_parents_come_before_children() -> None:
    with running(FAMILY) as pid:
        eventually("all are there", lambda: len(tree.find(pid).members) == 3)
        found = tree.find(pid)
        pids = [m.pid for m in found.members]
        assert pids[0] == pid == found.root.pid
        for child in pids[1:]:
            assert pids.index(procfs.read_stat(child).ppid) < pids.index(child)


def test_stop_and_go() -> None:
    with running(FAMILY) as pid:
        eventually("all are there", lambda: len(tree.find(pid).members) == 3)
        stopped = tree.stop(tree.find(pid), LIMIT)
        assert set(states(pid).values()) == {"T"}
        tree.go(stopped.members, stopped.stopped_before)
        eventually("they sleep again", lambda: set(states(pid).values()) == {"S"}, 5)


def test_a_tree_that_forks_all_the_time_is_stopped_whole() -> None:
    with running(FORKING) as pid:
        for _ in range(20):
            stopped = tree.stop(tree.find(pid), LIMIT)
            now = {m.pid for m in tree.find(pid).members}
            assert now == {m.pid for m in stopped.members}
            assert {procfs.read_stat(m.pid).state for m in stopped.members} <= {"T", "Z"}
            time.sleep(0.005)
            assert {m.pid for m in tree.find(pid).members} == now, "a stopped tree does not fork"
            tree.go(stopped.members)


def test_who_was_stopped_stays_stopped() -> None:
    with running(FAMILY) as pid:
        eventually("all are there", lambda: len(tree.find(pid).members) == 3)
        sleeper = tree.find(pid).members[-1].pid
        os.kill(sleeper, signal.SIGSTOP)
        eventually("it stops", lambda: procfs.read_stat(sleeper).state == "T", 5)
        stopped = tree.stop(tree.find(pid), LIMIT)
        assert stopped.stopped_before == {sleeper}
        tree.go(stopped.members, stopped.stopped_before)
        eventually("the others go", lambda: sorted(states(pid).values()) == ["S", "S", "T"], 5)
        os.kill(sleeper, signal.SIGCONT)


def test_a_stop_that_never_ends_lets_go() -> None:
    """A vfork parent waits in the kernel until its stopped child would have executed."""
    code = """
import ctypes, os, time
libc = ctypes.CDLL(None)
print('ready', flush=True)
pid = libc.vfork()
if pid == 0:
    time.sleep(60)
"""
    with running(code) as pid:
        eventually("it has vforked", lambda: procfs.read_stat(pid).state == "D", 5)
        with pytest.raises(StopTimeoutError) as caught:
            tree.stop(tree.find(pid), timedelta(milliseconds=100))
        assert "is D" in caught.value.evidence[0]
        eventually("the child goes on", lambda: "T" not in states(pid).values(), 5)


def test_a_root_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(TreeGoneError):
        tree.find(process.pid)
