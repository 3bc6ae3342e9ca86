"""Which interrupted calls are entered anew, decided on registers and done to real threads."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.journal import Journal
from tests.engine import eventually

EINTR = (1 << 64) - errno.EINTR
FOREVER = 0xFFFFFFFF
"""A timeout of -1, as an int in the lower half of a register; compilers leave anything in the upper one."""
SYSCALL, INT_80 = 0x050F, 0x80CD
WAIT, WAIT_BITSET, PRIVATE, REALTIME = 0, 9, 128, 256


def call(
    number: int,
    *,
    cs: int = 0x33,
    text: int = SYSCALL,
    rax: int = EINTR,
    rsi: int = 0x1000,
    rdx: int = 0x1000,
    r10: int = 0x1000,
    r8: int = 0,
) -> str:
    return f"call {cs:x} {text:x} {rax:x} {number:x} {rsi:x} {rdx:x} {r10:x} {r8:x}"


EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, POLL, PPOLL, FUTEX = 232, 281, 441, 7, 271, 202
SIGTIMEDWAIT, SEMOP, SEMTIMEDOP, RESTART = 128, 65, 220, 219
FINE = call(EPOLL_WAIT, r10=FOREVER)


def decided(program: Path, *lines: str) -> list[str]:
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        [program], input=text, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def anew(program: Path, line: str) -> bool:
    return decided(program, line) == ["1"]


@pytest.mark.parametrize(
    "line",
    [
        FINE,
        call(EPOLL_WAIT, r10=(1 << 64) - 1),
        call(EPOLL_PWAIT, r10=FOREVER),
        call(EPOLL_PWAIT2, r10=0),
        call(POLL, rdx=FOREVER),
        call(SIGTIMEDWAIT, rdx=0),
        call(SEMOP),
        call(SEMTIMEDOP, r10=0),
        call(FUTEX, rsi=WAIT_BITSET | PRIVATE),
        call(FUTEX, rsi=WAIT_BITSET | REALTIME),
    ],
)
def test_what_waits_without_a_clock_is_entered_anew(drivers: dict[str, Path], line: str) -> None:
    assert anew(drivers["rewind"], line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (call(EPOLL_WAIT, r10=1000), "its timeout would begin anew"),
        (call(EPOLL_WAIT, r10=0), "it does not wait"),
        (call(EPOLL_PWAIT, r10=1000), "its timeout would begin anew"),
        (call(EPOLL_PWAIT, r10=FOREVER, r8=0x1000), "it has a mask of its own"),
        (call(EPOLL_PWAIT2), "its timeout would begin anew"),
        (call(EPOLL_PWAIT2, r10=0, r8=0x1000), "it has a mask of its own"),
        (call(POLL, rdx=1000), "its timeout would begin anew"),
        (call(SIGTIMEDWAIT), "its timeout would begin anew"),
        (call(SEMTIMEDOP), "its timeout would begin anew"),
        (call(FUTEX, rsi=WAIT | PRIVATE), "its timeout would begin anew"),
        (call(FUTEX, rsi=11), "a requeued one can't be entered anew"),
        (call(PPOLL, r10=0), "the kernel restarts it"),
        (call(RESTART, r10=FOREVER), "what it goes on with is not known"),
        (call(0, r10=FOREVER), "read"),
        (call(45, r10=FOREVER), "recvfrom: EINTR only with a timeout"),
        (call(35, rsi=0), "nanosleep"),
        (call(230, rsi=0), "clock_nanosleep"),
        (call(EPOLL_WAIT, r10=FOREVER, rax=0), "it was not interrupted"),
        (call(EPOLL_WAIT, r10=FOREVER, rax=EPOLL_WAIT), "criu has rewound it already"),
        (call((1 << 64) - 1, r10=FOREVER), "a handler has run"),
        (call(EPOLL_WAIT, r10=FOREVER, text=INT_80), "a 32-bit call of a 64-bit process"),
        (call(EPOLL_WAIT, r10=FOREVER, cs=0x23), "a 32-bit process"),
        (call(EPOLL_WAIT | 1 << 30, r10=FOREVER), "an x32 call"),
    ],
)
def test_what_is_left(drivers: dict[str, Path], line: str, why: str) -> None:
    assert not anew(drivers["rewind"], line), why


def bit(number: signal.Signals) -> int:
    return 1 << (number - 1)


USR1, USR2, CONT = map(bit, (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT))


@pytest.mark.parametrize(
    ("blocked", "caught", "may"),
    [
        (0, 0, False),
        (0, USR1, True),
        (USR1, USR1, False),
        (USR2, USR1 | USR2, True),
        (0, CONT, True),
        (0, 3 << 31, False),  # the C library's own
        (0, 1 << 33, True),
        (0, 1 << 30, True),
    ],
)
def test_a_handler_may_run(drivers: dict[str, Path], blocked: int, caught: int, may: bool) -> None:
    assert anew(drivers["rewind"], f"signals {blocked:x} {caught:x}") is may


class Blocked:
    """A job of one thread, blocked in one call, with or without a handler for SIGUSR1."""

    def __init__(self, program: Path, name: str, folder: Path, *, handler: bool) -> None:
        self._out = folder / "returns"
        with self._out.open("wb") as out:
            words = [] if handler else ["quiet"]
            self.process = subprocess.Popen([program, "one", name, *words], stdout=out)
        self.pid = self.process.pid
        self.wait_blocked()

    def wait_blocked(self) -> None:
        def asleep() -> bool:
            return procfs.read_stat(self.pid).state == "S" and self.call() not in ("running", "")

        eventually("it is blocked", asleep)

    def call(self) -> str:
        """The number of the call that it is in."""
        return Path(f"/proc/{self.pid}/syscall").read_text().split()[0]

    def returns(self) -> list[list[str]]:
        return [line.split() for line in self._out.read_text().splitlines()]

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually("it is stopped", lambda: procfs.read_stat(self.pid).state == "T")

    def rewind(self, driver: Path, folder: Path) -> list[int]:
        return rewind(driver, folder, self)


def rewind(driver: Path, folder: Path, *jobs: Blocked) -> list[int]:
    """Rewind stopped jobs and let them go; the threads that were rewound."""
    pids = [job.pid for job in jobs]
    journal = Journal(folder / "journal", len(pids), hold=timedelta())
    try:
        journal.make_shadows_of(pids, [(pid, pid) for pid in pids])
        subprocess.run([driver, folder / "journal", *map(str, pids)], check=True, capture_output=True)
        return journal.entered_anew()
    finally:
        journal.close()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def to_process(pid: int, number: int) -> None:
    os.kill(pid, number)


def to_thread(pid: int, number: int) -> None:
    assert ctypes.CDLL(None).tgkill(pid, pid, number) == 0


@contextmanager
def blocked(built: dict[str, Path], name: str, folder: Path, *, handler: bool = False) -> Iterator[Blocked]:
    one = Blocked(built["blocked"], name, folder, handler=handler)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


def interrupted(one: Blocked, handlers: int) -> None:
    """Wait until its call has returned EINTR, and then is called again."""
    eventually("it returns", one.returns)
    assert [(words[3], int(words[4])) for words in one.returns()] == [("EINTR", handlers)]
    one.wait_blocked()


@pytest.mark.root
@pytest.mark.parametrize("name", ["epoll_wait", "sigwaitinfo", "semop"])
def test_the_job_sees_nothing(
    built: dict[str, Path], drivers: dict[str, Path], tmp_path: Path, name: str
) -> None:
    with blocked(built, name, tmp_path) as one:
        before = one.call()
        for _ in range(3):
            one.stop()
            assert one.rewind(drivers["rewind"], tmp_path) == [one.pid]
            one.wait_blocked()
        assert one.returns() == []
        assert one.call() == before


@pytest.mark.root
@pytest.mark.parametrize("name", ["epoll_wait-timed", "epoll_pwait-mask", "sigtimedwait", "semtimedop"])
def test_the_job_sees_what_can_not_be_entered_anew(
    built: dict[str, Path], drivers: dict[str, Path], tmp_path: Path, name: str
) -> None:
    with blocked(built, name, tmp_path) as one:
        one.stop()
        assert one.rewind(drivers["rewind"], tmp_path) == []
        interrupted(one, 0)


@pytest.mark.root
@pytest.mark.parametrize("send", [to_process, to_thread])
@pytest.mark.parametrize("first", [0, 1])
def test_a_signal_whose_handler_runs_interrupts(
    built: dict[str, Path],
    drivers: dict[str, Path],
    tmp_path: Path,
    send: Callable[[int, int], None],
    first: int,
) -> None:
    """Whenever it comes: what has a handler is left. The other one is not taken for it."""
    for folder in (tmp_path / "told", tmp_path / "left"):
        folder.mkdir()
    with (
        blocked(built, "epoll_wait", tmp_path / "told", handler=True) as told,
        blocked(built, "epoll_wait", tmp_path / "left") as left,
    ):
        told.stop()
        left.stop()
        send(told.pid, signal.SIGUSR1)
        jobs = (told, left) if first else (left, told)
        assert rewind(drivers["rewind"], tmp_path, *jobs) == [left.pid]
        interrupted(told, 1)
        left.wait_blocked()
        assert left.returns() == []


@pytest.mark.root
def test_a_signal_that_is_waited_for_is_not_lost(
    built: dict[str, Path], drivers: dict[str, Path], tmp_path: Path
) -> None:
    with blocked(built, "sigwaitinfo", tmp_path) as one:
        one.stop()
        os.kill(one.pid, signal.SIGUSR2)
        assert one.rewind(drivers["rewind"], tmp_path) == [one.pid]
        eventually("it returns", one.returns)
        assert int(one.returns()[0][2]) == signal.SIGUSR2


@pytest.mark.root
def test_a_blocked_signal_does_not_matter(
    built: dict[str, Path], drivers: dict[str, Path], tmp_path: Path
) -> None:
    with blocked(built, "epoll_wait", tmp_path) as one:
        one.stop()
        os.kill(one.pid, signal.SIGUSR2)
        assert one.rewind(drivers["rewind"], tmp_path) == [one.pid]
        one.wait_blocked()
        assert one.returns() == []
