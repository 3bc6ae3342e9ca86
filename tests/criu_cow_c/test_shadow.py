"""The shadow maker on real tasks, in a build with sanitizers."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.journal import Fault, Journal, State, Step
from tests.engine import eventually

pytestmark = pytest.mark.root

PAGES = 64


class Target:
    """A running target."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.pid = process.pid
        self.base = int(process.stdout.readline().split()[1], 16)

    def word(self, pid: int, page: int) -> int:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        try:
            return struct.unpack("<Q", os.pread(fd, 8, self.base + page * 4096))[0]
        finally:
            os.close(fd)

    def counts(self) -> bool:
        before = self.word(self.pid, 63)
        time.sleep(0.05)
        return self.word(self.pid, 63) > before


@contextmanager
def target(program: Path) -> Iterator[Target]:
    process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield Target(process)
    finally:
        process.kill()
        process.wait()


class Made:
    """Shadows that the driver holds."""

    def __init__(self, driver: Path, folder: Path, pids: list[int], fault: Fault | None) -> None:
        self.journal = Journal(folder / "journal", len(pids), hold=timedelta(), fault=fault)
        self.journal.make_shadows_of(pids)
        self._driver = subprocess.Popen(
            [driver, folder / "journal", *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if line == "done\n":
                break
        self.entries = self.journal.entries()

    def end(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        assert self._driver.wait(20) == 0, "the sanitizers found something"
        self.journal.close()


def text_word(pid: int) -> bytes:
    """What stands where the stub was: the start of the first executable mapping."""
    mapping = next(m for m in procfs.mappings(pid) if "x" in m.perms and m.private)
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return os.pread(fd, 8, mapping.start)
    finally:
        os.close(fd)


def test_a_shadow_is_a_stopped_copy_and_the_task_goes_on(drivers: dict[str, Path], tmp_path: Path) -> None:
    with target(drivers["target"]) as one:
        text = text_word(one.pid)
        descriptors = procfs.descriptors(one.pid)
        made = Made(drivers["shadow"], tmp_path, [one.pid], None)
        (entry,) = made.entries
        assert entry.state is State.SHADOWED
        shadow = entry.shadow
        assert [one.word(shadow, n) for n in range(63)] == list(range(1, 64))
        counter = one.word(shadow, 63)
        assert one.counts()
        assert one.word(shadow, 63) == counter, "the copy does not move"

        stat = procfs.read_stat(shadow)
        assert (stat.state, stat.comm, stat.session) == ("T", "cw-shadow", shadow)
        assert procfs.descriptors(shadow) == [], "nothing of the job is kept open"
        assert Path(f"/proc/{shadow}/oom_score_adj").read_text() == "1000\n"
        assert procfs.status(shadow)["SigBlk"] == "fffffffffffbfeff", "all but SIGKILL and SIGSTOP"
        assert procfs.thread_ids(shadow) == [shadow]
        assert stat.ppid != one.pid
        assert procfs.children(one.pid) == [], "no child, no zombie"
        assert text_word(shadow) == text_word(one.pid) == text, "the stub is gone"
        assert procfs.descriptors(one.pid) == descriptors

        os.kill(shadow, signal.SIGCONT)
        time.sleep(0.1)
        assert procfs.read_stat(shadow).state == "S", "it waits and runs nothing of the job"
        assert one.word(shadow, 63) == counter
        made.end()
        eventually(
            "it is gone",
            lambda: not Path(f"/proc/{shadow}").exists() or procfs.read_stat(shadow).state == "Z",
        )
        assert one.counts()


def test_signals_that_were_pending_are_neither_lost_nor_handled_half_way(
    drivers: dict[str, Path], tmp_path: Path
) -> None:
    with target(drivers["target"]) as one:
        before = procfs.status(one.pid)
        made = Made(drivers["shadow"], tmp_path, [one.pid], None)
        after = procfs.status(one.pid)
        for field in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", "Seccomp"):
            assert after[field] == before[field]
        made.end()


def test_many_tasks_at_once(drivers: dict[str, Path], tmp_path: Path) -> None:
    with ExitStack() as stack:
        targets = [stack.enter_context(target(drivers["target"])) for _ in range(8)]
        made = Made(drivers["shadow"], tmp_path, [t.pid for t in targets], None)
        assert [e.state for e in made.entries] == [State.SHADOWED] * 8
        for one, entry in zip(targets, made.entries, strict=True):
            assert one.word(entry.shadow, 5) == 6
            assert one.counts()
        made.end()


@pytest.mark.parametrize("step", [Step.PREPARE, Step.MIDDLE, Step.SHADOW, Step.DETACH])
def test_a_failure_leaves_the_task_as_it_was(drivers: dict[str, Path], tmp_path: Path, step: Step) -> None:
    with target(drivers["target"]) as one:
        text = text_word(one.pid)
        before = procfs.status(one.pid)["SigBlk"]
        made = Made(drivers["shadow"], tmp_path, [one.pid], Fault(step, errno.ENOMEM))
        (entry,) = made.entries
        assert entry.state is State.FAILED
        assert (entry.step, entry.errno, entry.shadow) == (step, errno.ENOMEM, 0)
        assert one.counts()
        assert text_word(one.pid) == text
        assert procfs.status(one.pid)["SigBlk"] == before
        assert procfs.children(one.pid) == []
        made.end()


KILLS_ON_CLONE = """
import ctypes, struct, sys, os
# seccomp filter: clone, clone3 and setsid kill the process
code = b"".join(struct.pack("<HBBI", *i) for i in [
    (0x20, 0, 0, 0), (0x15, 3, 0, 56), (0x15, 2, 0, 435), (0x15, 1, 0, 112), (0x06, 0, 0, 0x7FFF0000),
    (0x06, 0, 0, 0x80000000)])
buffer = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(code) // 8, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(317, 1, 0, program) == 0
print("ready", flush=True)
while True: sys.stdin.readline() or os._exit(0)
"""


def test_a_seccomp_filter_of_the_job_does_not_see_us(drivers: dict[str, Path], tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["python3", "-c", KILLS_ON_CLONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    made = Made(drivers["shadow"], tmp_path, [process.pid], None)
    assert made.entries[0].state is State.SHADOWED
    assert process.poll() is None
    assert procfs.status(process.pid)["Seccomp"] == "2"
    made.end()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0


def test_a_journal_that_is_none_is_refused(drivers: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "journal"
    made = Journal(path, 2, hold=timedelta())
    whole = path.read_bytes()
    made.close()
    for content in (b"", b"x" * 135, b"x" * 4096, whole[: 136 + 1023]):
        path.write_bytes(content)
        assert subprocess.run([drivers["shadow"], path, "1"], check=False).returncode == 2
