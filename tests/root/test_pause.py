"""What must not be done while the job stands still."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine

pytestmark = pytest.mark.root

PAUSE_MODULES = Path(__file__).parent.parent / "pause_modules.py"
JOB = """
import itertools, os, time
os.mkfifo("fifo")
deleted, kept = open("deleted", "w+"), open("kept", "a")
deleted.write("x"); deleted.flush(); os.unlink("deleted")
shared = open("/dev/shm/cw-test-pause", "w+"); os.unlink("/dev/shm/cw-test-pause")
if os.fork() == 0: time.sleep(1000)
for n in itertools.count(): print(n, flush=True); time.sleep(0.02)
"""


def test_nothing_is_imported(engine: Engine, tmp_path: Path) -> None:
    """The first use of a message of criu's images takes milliseconds."""
    engine.job("job", [sys.executable, "-u", "-c", JOB], cwd=tmp_path)
    engine.wait_lines("job", 3)
    done = subprocess.run(
        [sys.executable, PAUSE_MODULES, "take", "job"],
        env=engine.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "imported in the pause:\n" in done.stderr
