"""How a take that fails is given up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.coordinator.jobs import JobRecord, JobStore, new_record
from cw_snapshot.coordinator.operations import Operation
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.signals import InterruptedBySignalError, interruptible
from cw_snapshot.coordinator.take import (
    JobEndedError,
    TakeAbortedError,
    TakeRequest,
    _Take,
    refusals_that_stand,
    take,
)
from cw_snapshot.errors import CwError, UsageError
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_session import CriuDiedError
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.guard import JobHarmedError
from cw_snapshot.snapshot.launch import Launched
from cw_snapshot.snapshot.phases import PauseTimes


class Node:
    """A take of a tree that fails to be stopped."""

    log = None
    aborted = 0
    times = PauseTimes()

    def __init__(self, error: CwError, worse: CwError | None = None) -> None:
        self._error = error
        self._worse = worse

    def open(self) -> None:
        raise self._error

    def abort(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        self.aborted += 1
        if self._worse:
            raise self._worse


class Store:
    def load_index(self) -> None: ...


class Writer:
    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: Any) -> None: ...


class Quiet:
    def phase(self, name: str) -> None: ...
    def pages(self, stats: Any, total: int) -> None: ...


def failing(
    node: Node,
    root: int,
    started: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: JobRecord | None = None,
) -> None:
    op = Operation("id", "take", "job", tmp_path)
    take = _Take(TakeRequest("job", root, record), Store(), Settings(), Quiet(), op)  # type: ignore[arg-type]
    take._root_start = started
    monkeypatch.setattr(take, "_writer", lambda broker: Writer())
    monkeypatch.setattr(take, "_checked_node", lambda: node)
    with interruptible():
        take.run()


def test_a_signal_does_not_interrupt_cleaning_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(UsageError(what="first"))
    us = procfs.read_stat(os.getpid())
    with pytest.raises(TakeAbortedError, match="runs on as before"):
        failing(node, us.pid, us.starttime, tmp_path, monkeypatch)
    assert node.aborted == 1


def test_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes when cleaning up begins."""
    from cw_snapshot.coordinator import take

    node = Node(UsageError(what="first"))
    us = procfs.read_stat(os.getpid())
    monkeypatch.setattr(take, "ignore_signals", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises((TakeAbortedError, InterruptedBySignalError)):
        failing(node, us.pid, us.starttime, tmp_path, monkeypatch)
    assert node.aborted == 1


@pytest.mark.parametrize("worse", [None, JobHarmedError(evidence=["pid 7"])])
def test_a_job_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worse: CwError | None) -> None:
    process = subprocess.Popen(["true"])
    try:
        started = procfs.read_stat(process.pid).starttime
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(JobEndedError) as caught:
            failing(Node(UsageError(what="first"), worse), process.pid, started, tmp_path, monkeypatch)
    finally:
        process.wait()
    assert caught.value.exit_code == 4
    assert "runs on" not in str(caught.value)


def test_what_force_does_not_override() -> None:
    own, other = (Finding(code, Severity.REFUSAL, "what") for code in ("own-tree", "io-uring"))
    assert refusals_that_stand([own, other], force=False) == [own, other]
    assert refusals_that_stand([own, other], force=True) == [own]


class Interrupting:
    """Progress of a take that is interrupted at once."""

    def phase(self, name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def pages(self, stats: Any, total: int) -> None: ...


def test_an_interrupted_take_says_how_the_job_stands(tmp_path: Path) -> None:
    request, settings = TakeRequest("job", os.getpid()), Settings(state_dir=tmp_path)
    with pytest.raises(TakeAbortedError, match=r"runs on .* Interrupted by SIGTERM") as caught:
        take(request, JobStore(tmp_path), Store(), settings, Interrupting())  # type: ignore[arg-type]
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTRAP, 10), (signal.SIGKILL, 4), (None, 4)])
def test_a_job_that_ended_of_a_dying_criu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, code: int
) -> None:
    """When criu has died too: somebody ended both, or the job was harmed."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    status = tmp_path / "status.json"
    if number is not None:
        status.write_text(json.dumps({"exit_code": 0, "signal": number, "ended": 1}))
    record = new_record(
        "job",
        0,
        Launched(process.pid, 1, 2),
        root=2,
        command=[],
        folder="/",
        log="",
        status=status,
    )
    try:
        started = procfs.read_stat(process.pid).starttime
        error = CriuDiedError(what="dump the job")
        with pytest.raises(CwError) as caught:
            failing(Node(error), process.pid, started, tmp_path, monkeypatch, record)
    finally:
        process.wait()
    assert caught.value.exit_code == code
