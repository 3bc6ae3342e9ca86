"""What a job can notice of a take and a restore: docs/what-a-job-notices.md is true."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs, tree
from tests.engine import Engine, eventually

pytestmark = pytest.mark.root

PAGE = Path(__file__).parents[2] / "docs" / "what-a-job-notices.md"
WHO = ("leader", "thread")


def documented() -> dict[str, str]:
    """What the page says of each call of tests/jobs/blocked.c, by its name there."""
    found = {}
    for row in re.findall(r"^\| [^|]+ \| (`[^|]+`) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", row[0]):
            found[name] = row[1]
    return found


def called(meaning: str) -> set[str]:
    return {name for name, sees in documented().items() if meaning in sees}


class Return:
    """One line of tests/jobs/blocked.c."""

    def __init__(self, line: str) -> None:
        self.name, self.who, result, self.error, handlers, elapsed, asked = line.split()
        self.result, self.handlers, self.elapsed, self.asked = map(int, (result, handlers, elapsed, asked))

    @property
    def short(self) -> bool:
        return self.name.endswith("-short")

    @property
    def timed_out(self) -> bool:
        return self.result == 0 or self.error == "ETIMEDOUT"


def returns(lines: Iterable[str]) -> list[Return]:
    return [Return(line) for line in lines if line != "ready"]


class Calls:
    """A job that is blocked in every call."""

    def __init__(self, engine: Engine, program: Path, *words: str) -> None:
        self.engine = engine
        engine.job("calls", [program, *words])
        eventually("all are called", lambda: "ready" in self.engine.log("calls"))
        self.seen = 0
        self.wait_blocked()

    def threads(self) -> list[Path]:
        root = self.engine.root("calls")
        return [t for m in tree.find(root).members for t in Path(f"/proc/{m.pid}/task").iterdir()]

    def wait_blocked(self) -> None:
        """Until every thread is blocked, whatever the short ones do."""

        def blocked() -> bool:
            states = [procfs.read_stat(int(t.name)).state for t in self.threads()]
            return states.count("S") == len(states)

        eventually("all are blocked", blocked)

    def take(self) -> None:
        self.wait_blocked()
        self.engine.take("calls")

    def new(self) -> list[Return]:
        """All returns since the last look, once the short calls have ended twice more: by then every
        other call that was interrupted has returned, too."""
        begin = self.seen

        def later() -> list[Return]:
            return returns(self.engine.log("calls")[begin:])

        def twice() -> bool:
            ended = Counter(r.who for r in later() if r.name == "select-short" and r.timed_out)
            return all(ended[who] >= 2 for who in WHO)

        eventually("short calls end", twice)
        self.seen = len(self.engine.log("calls"))
        return later()


def assert_as_documented(found: list[Return], times: int) -> None:
    """Each call that the page says so of has returned EINTR at each of these times, and no other call
    has; nothing else has returned but what has waited for as long as it wanted to."""
    interrupted = Counter((r.name, r.who) for r in found if r.error == "EINTR")
    expected = {(name, who) for name in called("EINTR") for who in WHO}
    assert set(interrupted) == expected
    assert {call: n for call, n in interrupted.items() if n != times and "-short" not in call[0]} == {}
    assert all(n <= times for n in interrupted.values())
    assert [r.name for r in found if r.handlers] == []
    others = [r for r in found if r.error != "EINTR"]
    assert [r.name for r in others if not r.short or not r.timed_out] == []
    # A point of CLOCK_REALTIME may pass while the job is not there.
    too_early = [r.name for r in others if r.elapsed < r.asked and r.name != "sem_timedwait-short"]
    assert too_early == []


@pytest.mark.parametrize("takes", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_calls(engine: Engine, built: dict[str, Path], takes: int) -> None:
    listed = subprocess.run([built["blocked"], "list"], capture_output=True, text=True, check=True)
    assert sorted(documented()) == sorted(listed.stdout.split())
    calls = Calls(engine, built["blocked"])
    for _ in range(takes):
        calls.take()
    assert_as_documented(calls.new(), takes)
    engine.stop("calls")
    calls.seen = len(engine.log("calls"))
    engine.restore("latest:calls")
    assert_as_documented(calls.new(), 1)
    calls.take()
    assert_as_documented(calls.new(), 1)


def test_a_handler_of_sigcont(engine: Engine, built: dict[str, Path]) -> None:
    """It runs once in each process, and what would have been entered anew returns."""
    calls = Calls(engine, built["blocked"], "handler")
    due = called("EINTR") | called("entered anew")
    long = {name for name in due if not name.endswith("-short")}

    def assert_due(found: list[Return]) -> None:
        interrupted = [r for r in found if r.error == "EINTR" and r.name in long]
        assert {r.name for r in interrupted} == long
        leaders = Counter(r.name for r in interrupted if r.who == "leader" and r.handlers == 1)
        assert leaders == dict.fromkeys(long, 1)

    calls.new()
    calls.take()
    assert_due(calls.new())
    engine.stop("calls")
    calls.seen = len(engine.log("calls"))
    engine.restore("latest:calls")
    assert_due(calls.new())


def one_call(engine: Engine, program: Path, name: str, *words: str) -> int:
    """Start a job that is blocked in one call; its root."""
    engine.job("one", [program, "one", name, *words])
    root = engine.root("one")
    assert procfs.read_stat(root).comm == program.name
    wait_blocked(root, "232")
    return root


def wait_blocked(pid: int, number: str) -> None:
    call = Path(f"/proc/{pid}/syscall")
    eventually("it is blocked", lambda: call.read_text().split()[0] == number)


def test_a_parent_in_the_job(engine: Engine, built: dict[str, Path]) -> None:
    """It is stopped first, so a SIGCHLD waits for it: its handler runs, and its EINTR is due."""
    one_call(engine, built["blocked"], "epoll_wait", "child")
    for _ in range(2):
        before = len(engine.log("one"))
        engine.take("one")
        eventually("it returns", lambda before=before: len(engine.log("one")) > before)
        last = Return(engine.log("one")[-1])
        assert (last.error, last.handlers > 0) == ("EINTR", True)
    engine.stop("one")
    before = len(engine.log("one"))
    engine.restore("latest:one")
    eventually("it returns", lambda: len(engine.log("one")) > before)
    assert Return(engine.log("one")[before]).error == "EINTR"


def test_stopped_by_somebody_else(engine: Engine, built: dict[str, Path]) -> None:
    """Its call has been interrupted before us, and stays so."""
    root = one_call(engine, built["blocked"], "epoll_wait", "quiet")
    os.kill(root, signal.SIGSTOP)
    eventually("it is stopped", lambda: procfs.read_stat(root).state == "T")
    engine.take("one")
    assert engine.log("one") == []
    os.kill(root, signal.SIGCONT)
    eventually("it returns", lambda: engine.log("one"))
    assert [Return(line).error for line in engine.log("one")] == ["EINTR"]


OUTSIDE = """
import os, signal, subprocess, sys
def on_child(*_):
    while found := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
        print({os.CLD_STOPPED: 'stopped', os.CLD_CONTINUED: 'continued'}[found.si_code], flush=True)
signal.signal(signal.SIGCHLD, on_child)
child = subprocess.Popen(sys.argv[1:], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
print(child.pid, flush=True)
while True: signal.pause()
"""


def test_a_parent_outside(engine: Engine) -> None:
    """It is no part of the job and sees it stop and go on."""
    log = engine.folder / "outside.log"
    with log.open("wb") as file:
        parent = engine.other_process(
            [sys.executable, "-c", OUTSIDE, sys.executable, "-c", "import time; time.sleep(600)"],
            stdout=file,
        )
    eventually("the child is there", lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    try:
        for n in range(1, 3):
            engine.ok("take", "--pid", str(child), "outside")
            eventually("it was told", lambda n=n: log.read_text().count("continued") == n)
        assert log.read_text().split()[1:] == ["stopped", "continued"] * 2
        assert parent.poll() is None
    finally:
        os.kill(child, signal.SIGKILL)


AWAY = 3
"""Seconds between the end of a job and its restore."""


def test_clocks(engine: Engine, built: dict[str, Path]) -> None:
    """After a restore all clocks but CLOCK_REALTIME, and all timers, go on where they were."""
    engine.job("clocks", [built["clocks"]])
    engine.wait_lines("clocks", 20)
    engine.take("clocks", "--stop")
    before = [[int(word) for word in line.split()] for line in engine.log("clocks")]
    time.sleep(AWAY)
    begun = time.monotonic()
    engine.restore("latest:clocks")
    # The job's clocks run from the beginning of criu's work, its timers from the end.
    slack = 2 + 10 * (time.monotonic() - begun)
    lines = engine.wait_lines("clocks", 50)
    after = [[int(word) for word in line.split()] for line in lines[len(before) :]]
    passed = [new - old for old, new in zip(before[-1], after[0], strict=True)]
    monotonic, boottime, uptime, realtime, *_, pid, parent = passed
    second = 1_000_000
    assert 0 < monotonic < realtime - (AWAY - 1) * second
    assert 0 < boottime < realtime - (AWAY - 1) * second
    assert 0 <= uptime < realtime - (AWAY - 1) * second
    assert (pid, parent) == (0, 0)
    # One each 100 ms of the job's own time: none is lost, none is made up for the time away.
    for row in (before[-1], after[0], after[-1]):
        own = (row[0] - before[0][0]) / 100_000
        for fired in row[4:6]:
            assert own - slack < fired < own + 2
    assert after[-1][6] > after[0][6], "the itimer goes on"


LATE_SIGNAL = """
import os, select, signal, sys
memory = bytearray(os.urandom(1 << 20) * 400)
def on_signal(*_):
    print("told", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, on_signal)
print("on", flush=True)
select.epoll().poll()
"""


def test_a_signal_in_the_pause_ends_the_call(engine: Engine) -> None:
    """Python's handlers run when the call that it waits in returns: a job that is told to end does."""
    engine.job("told", [sys.executable, "-c", LATE_SIGNAL])
    eventually("it waits", lambda: engine.log("told") == ["on"])
    root = engine.root("told")
    wait_blocked(root, "232")
    take = engine.start("take", "told", stdout=-3, stderr=-3)
    eventually("it is stopped", lambda: procfs.read_stat(root).state in "Tt")
    os.kill(root, signal.SIGTERM)
    take.wait(60)
    eventually("it was told", lambda: engine.log("told") == ["on", "told"])
