"""Room for what a take adds: images on a tmpfs, tasks. And what the kernel keeps for itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cw_snapshot.snapshot import cgroups, procfs
from tests.engine import COMMAND, Engine, consecutive, eventually, shadows_of, states
from tests.groups import control_group
from tests.root.test_stops import paused_and_gone
from tests.root.test_users_and_places import PYTHON

pytestmark = pytest.mark.root

SHARING = """
import itertools, mmap, time
shared = mmap.mmap(-1, 48 << 20)
for at in range(0, len(shared), 4096): shared[at] = 1
for n in itertools.count(): print(n, flush=True); time.sleep(0.02)
"""

FILL_AT = """
import os, sys
from cw_snapshot.cli import main
from cw_snapshot.snapshot.take import NodeTake
def full():
    fd = os.open('/dev/shm/rubbish', os.O_WRONLY | os.O_CREAT)
    try:
        while True: os.write(fd, bytes(1 << 16))
    except OSError: pass
    try:
        while True: os.write(fd, bytes(1))
    except OSError: pass
phase = sys.argv[1]
original = getattr(NodeTake, phase)
def then_full(node):
    original(node)
    full()
setattr(NodeTake, phase, then_full)
main.arguments = lambda: sys.argv[2:]
sys.exit(main.run())
"""


def with_small_tmpfs(engine: Engine, size: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that has a /dev/shm of its own."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$0" "$@"'
    words = ["unshare", "--mount", "bash", "-c", script, *map(str, command)]
    return subprocess.run(words, env=engine.environment, capture_output=True, text=True, check=False)


def test_a_tmpfs_that_is_too_small_is_refused_with_numbers(engine: Engine) -> None:
    engine.job("sharing", [sys.executable, "-u", "-c", SHARING])
    engine.wait_lines("sharing", 3)
    done = with_small_tmpfs(engine, "32M", COMMAND, "take", "sharing", "--json")
    assert done.returncode == 3, done.stdout
    (line,) = json.loads(done.stdout)["evidence"]
    assert "/dev/shm: 5" in line, "48 MiB are shared"
    assert "32 MiB free" in line
    assert "remount" in line
    assert with_small_tmpfs(engine, "96M", COMMAND, "take", "sharing", "--json").returncode == 0
    assert consecutive(engine.wait_lines("sharing", 3))


@pytest.mark.parametrize("phase", ["open", "stop", "skeleton"])
def test_a_tmpfs_that_fills_up_in_the_pause_costs_the_snapshot(engine: Engine, phase: str) -> None:
    engine.job("sharing", [sys.executable, "-u", "-c", SHARING])
    engine.wait_lines("sharing", 3)
    words = [sys.executable, "-c", FILL_AT, phase, "take", "sharing", "--json"]
    done = with_small_tmpfs(engine, "96M", *words)
    if phase == "skeleton":  # everything is written
        assert done.returncode == 0, done.stdout
    else:
        assert done.returncode == 4, done.stdout
        assert "No space left" in done.stdout
        assert engine.ok("list", "--json").json["snapshots"] == []
    eventually("nothing is stopped", lambda: set(states(engine.root("sharing")).values()) <= {"S", "R"}, 10)
    assert consecutive(engine.wait_lines("sharing", 3))
    engine.assert_clean()


# -- tasks -------------------------------------------------------------------------------


def test_shadows_do_not_count_against_the_job_s_pids_limit(engine: Engine) -> None:
    """Where pids have a hierarchy of their own; elsewhere they count while they live."""
    engine.counter()
    root = engine.root("counter")
    with control_group("pids") as group:
        (group / "cgroup.procs").write_text(str(root))
        (group / "pids.max").write_text("3")
        with paused_and_gone(root, "pids"):
            (shadow,) = shadows_of(engine, "counter")
            inside = (group / "cgroup.procs").read_text().split()
            own = (group / "tasks").exists()
            assert (str(shadow) in inside) != own
            memory = [cgroups.folders([pid], "memory") for pid in (root, shadow)]
            assert memory[0] == memory[1], "whoever shares memory dies first, there"
        (group / "pids.max").write_text("2")
        (finding,) = engine.plan("counter")["findings"]
        assert (finding["code"], finding["severity"]) == ("pids-headroom", "warning")
        assert f"{group}: pids.max 2, 1 tasks" in finding["evidence"]


def test_a_user_at_the_limit_of_processes(engine: Engine) -> None:
    """RLIMIT_NPROC counts all tasks of a user; a clone that it forbids is done without."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
    engine.job("user", [PYTHON, "-u", "-c", limited + SHARING], "--user", "nobody", cwd=Path("/"))
    engine.wait_lines("user", 3)
    report = engine.take("user")
    assert len(report["without_shadow"]) == 1
    assert "Resource temporarily unavailable" in report["without_shadow"][0]
    engine.wait_lines("user", 3)
    engine.stop("user")
    before = len(engine.log("user"))
    engine.restore("latest:user")
    assert consecutive(engine.wait_lines("user", 5)[before:])
    engine.assert_clean()


# -- pinned memory, restartable sequences ------------------------------------------------

PINNED = """
import ctypes, itertools, mmap, struct, time
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(425, 4, ctypes.create_string_buffer(256))
assert fd >= 0, ctypes.get_errno()
area = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
vector = ctypes.create_string_buffer(struct.pack('QQ', address, len(area)))
assert libc.syscall(427, fd, 0, vector, 1) == 0, ctypes.get_errno()  # IORING_REGISTER_BUFFERS
for n in itertools.count(): print(n, flush=True); time.sleep(0.02)
"""


def test_pinned_memory_counts_as_pause(engine: Engine) -> None:
    """A fork copies it: 1 s a GiB."""
    engine.job("pinned", [sys.executable, "-u", "-c", PINNED], "--allow-io-uring")
    engine.wait_lines("pinned", 3)
    pinned = procfs.status_bytes(procfs.status(engine.root("pinned")), "VmPin")
    assert pinned >= 64 << 20, "the kernel counts it"
    predicted = engine.run("take", "pinned", "--plan", "--json").json["predicted"]
    assert predicted["pinned_bytes"] == pinned
    assert predicted["pause_seconds"] > pinned / (1 << 30)


def test_restartable_sequences_go_on(engine: Engine, built: dict[str, Path]) -> None:
    """The kernel's part of each thread's rseq area is not what it was at the snapshot."""
    engine.job("rseq", [built["rseq"]])
    engine.wait_lines("rseq", 5)
    for _ in range(2):
        engine.take("rseq")
        engine.stop("rseq")
        before = len(engine.log("rseq"))
        engine.restore("latest:rseq")
        lines = engine.wait_lines("rseq", 20)[before:]
        assert not [line for line in lines if not line.endswith(" ok")], lines[:5]
    engine.assert_clean()
