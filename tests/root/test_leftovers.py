"""What `doctor` offers to remove, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from cw_snapshot.coordinator import leftovers
from cw_snapshot.coordinator.leftovers import find_leftovers
from cw_snapshot.snapshot import work_folder
from cw_snapshot.snapshot.work_folder import WorkFolder
from tests.engine import Engine, eventually, states

pytestmark = pytest.mark.root

OURS = "test-of-leftovers"
NAMED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, b"cw-shadow", 0, 0, 0)
print("named", flush=True)
if sys.argv[1:]:
    os.closerange(0, 1 << 16)
while True:
    ctypes.CDLL(None).pause()
"""


def named(engine: Engine, *words: str) -> int:
    process = engine.other_process([sys.executable, "-c", NAMED, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"named\n"
    return process.pid


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes of others on this machine are not looked at."""
    ours = lambda: [path for path in work_folder.folders_in_use() if path.name.endswith(OURS)]  # noqa: E731
    monkeypatch.setattr(leftovers, "folders_in_use", ours)


def evidence() -> set[str]:
    return {found.evidence for found in find_leftovers()}


def test_a_process_with_the_name_of_a_shadow(engine: Engine) -> None:
    job, shadow = named(engine), named(engine, "close everything")
    eventually("it has closed everything", lambda: not os.listdir(f"/proc/{shadow}/fd"), 10)
    found = {f.evidence: f for f in find_leftovers()}
    assert f"pid {job}" not in found
    found[f"pid {shadow}"].remove()
    eventually("it has ended", lambda: f"pid {shadow}" not in evidence(), 10)


def test_a_table_belongs_to_the_operation_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_criu_tables", lambda: ["CRIU-1"])
    work = WorkFolder(OURS)
    try:
        assert "inet CRIU-1" not in evidence()
    finally:
        work.remove()
    assert "inet CRIU-1" in evidence()


def test_a_job_that_its_user_stopped(engine: Engine) -> None:
    engine.counter()
    root = engine.root("counter")
    os.kill(root, signal.SIGSTOP)
    eventually("it is stopped", lambda: states(root)[root] == "T", 10)
    engine.run("doctor", "--fix")
    assert states(root)[root] == "T"
    with suppress(ProcessLookupError):
        os.kill(root, signal.SIGCONT)
