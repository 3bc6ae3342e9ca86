"""Jobs of other users, hostile folders, trees with pipes, unlinked files, many descriptors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.coordinator.deadlines import JobSize, take_limits
from cw_snapshot.snapshot import procfs, tree
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.take import NodeTake
from tests.engine import COUNTER, Engine, consecutive, eventually

pytestmark = pytest.mark.root

PYTHON = "/usr/bin/python3"
"""One that every user can start."""

SHARED = """
import mmap, os, time
# An unlinked file, a pipe to ourselves, a memfd and shared memory with a child.
deleted = open('/tmp/cw-deleted-%d' % os.getpid(), 'w+b', buffering=0); os.unlink(deleted.name)
reader, writer = os.pipe()
os.write(writer, b'in the pipe')
shared = mmap.mmap(-1, 4096)
child = os.fork()
if child == 0:
    n = 0
    while True:
        n += 1; shared[:8] = n.to_bytes(8, 'little'); time.sleep(0.001)
n = 0
while True:
    deleted.seek(0); deleted.write(b'%d' % n); deleted.seek(0)
    assert deleted.read(20).startswith(b'%d' % n)
    print(n, flush=True); n += 1
    if n == 1000000: print(os.read(reader, 100))
    time.sleep(0.02)
"""


def comes_back(engine: Engine, job: str) -> None:
    engine.wait_lines(job, 5)
    engine.take(job)
    engine.wait_lines(job, 5)
    engine.stop(job)
    before = len(engine.log(job))
    engine.restore(f"latest:{job}")
    assert consecutive(engine.wait_lines(job, 10)[before:])


@pytest.mark.every_criu
def test_a_job_of_another_user(engine: Engine) -> None:
    """Without CAP_SYS_RESOURCE criu must run as that user: prlimit(2) refuses across uids."""
    engine.job("users", [PYTHON, "-u", "-c", SHARED], "--user", "nobody", cwd=Path("/"))
    engine.wait_lines("users", 3)
    uid = procfs.status(engine.root("users"))["Uid"].split()
    assert set(uid) == {"65534"}
    comes_back(engine, "users")
    assert set(procfs.status(engine.root("users"))["Uid"].split()) == {"65534"}
    engine.take("users")
    engine.assert_clean()


@pytest.mark.every_criu
def test_unlinked_files_pipes_and_shared_memory(engine: Engine) -> None:
    engine.job("shared", [PYTHON, "-u", "-c", SHARED])
    comes_back(engine, "shared")


UNLINKED = """
import os, socket, sys, time
os.mkdir(sys.argv[1]); os.chdir(sys.argv[1])
opened = os.open('.', os.O_RDONLY)
deleted = open(sys.argv[2], 'w+b', buffering=0); deleted.write(b'deleted'); os.unlink(sys.argv[2])
os.rmdir(sys.argv[1])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 0))
print(udp.getsockname()[1], flush=True)
n = 0
while True:
    deleted.seek(0); assert deleted.read() == b'deleted'
    print(n, flush=True); n += 1; time.sleep(0.02)
"""


def test_deleted_files_and_folders_and_a_restore_that_failed(engine: Engine) -> None:
    """A ghost that an earlier restore has left is in criu's way; a failed one leaves none."""
    folder, path = engine.folder / "folder", engine.folder / "deleted"
    engine.job("unlinked", [PYTHON, "-u", "-c", UNLINKED, folder, path])
    port = int(engine.wait_lines("unlinked", 5)[0])
    engine.take("unlinked")
    engine.stop("unlinked")
    stale = [path.with_name(f"deleted.cr.{number}.ghost") for number in (1, 2, 3)]
    for ghost in stale:
        ghost.touch()
    before = len(engine.log("unlinked"))
    engine.restore("latest:unlinked")
    assert consecutive(engine.wait_lines("unlinked", 5)[before:])
    assert not folder.exists()
    assert not path.exists()
    assert len([ghost for ghost in stale if ghost.exists()]) == 2, "only its own is removed"
    engine.take("unlinked")
    engine.stop("unlinked")
    ghosts = set(engine.folder.glob("*.ghost"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", port))
        assert engine.run("restore", "latest:unlinked").code == 4
    assert set(engine.folder.glob("*.ghost")) <= ghosts
    engine.restore("latest:unlinked")
    engine.assert_clean()


def test_stdout_that_was_a_pipe_to_the_outside(engine: Engine) -> None:
    process = engine.other_process(
        [PYTHON, "-u", "-c", COUNTER],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(5):
        last = int(process.stdout.readline())
    engine.ok("take", "--pid", str(process.pid), "piped")
    for more in ([], ["--plan"]):
        done = engine.run("restore", "latest:piped", "--json", *more)
        assert (done.code, done.json["code"]) == (3, "original-runs")
        assert f"pid {process.pid}" in done.json["message"]
    assert process.poll() is None
    process.kill()
    process.wait()
    engine.restore("latest:piped")
    lines = engine.wait_lines("piped", 10)
    assert int(lines[0]) > last - 5
    assert consecutive(lines)
    # The restored one has a log file instead of the pipe, and can be taken again.
    comes_back(engine, "piped")


def test_many_descriptors_and_threads(engine: Engine) -> None:
    code = """
import os, socket, threading, time
files = [open('/dev/null') for _ in range(300)]
pairs = [socket.socketpair() for _ in range(20)]
threads = [threading.Thread(target=time.sleep, args=(600,), daemon=True) for _ in range(40)]
for t in threads: t.start()
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
n = 0
while True:
    client.sendall(b'%8d' % n); assert int(peer.recv(8)) == n
    print(n, flush=True); n += 1; time.sleep(0.02)
"""
    engine.job("many", [sys.executable, "-u", "-c", code])
    comes_back(engine, "many")


def test_hostile_modules_where_the_command_is_started(engine: Engine) -> None:
    hostile = engine.folder / "hostile"
    for name in ("coordinator", "lab", "storage", "cw_snapshot", "click", "numpy"):
        (hostile / name).mkdir(parents=True)
        (hostile / name / "__init__.py").write_text("raise SystemExit('hostile code ran')")
    for name in ("snapshot", "cli", "errors", "json", "yaml"):
        (hostile / f"{name}.py").write_text("raise SystemExit('hostile code ran')")
    environment = {**engine.environment, "PYTHONPATH": str(hostile)}
    for words in (["--version"], ["ps", "--json"], ["list", "--json"], ["doctor", "--json"]):
        done = engine.run(*words, cwd=hostile, env=environment)
        assert done.code in (0, 20), done.err
        assert "hostile" not in done.out + done.err
    # The job itself gets the environment as it is: it is the user's business.
    engine.ok(
        "run", "--job-id", "there", "--", PYTHON, "-I", "-u", "-c", COUNTER, cwd=hostile, env=environment
    )
    engine.wait_lines("there", 3)
    engine.ok("take", "there", cwd=hostile, env=environment)


def test_old_pids_that_are_in_use(engine: Engine) -> None:
    log = engine.folder / "plain.log"
    with log.open("ab") as file:
        process = engine.other_process(
            [PYTHON, "-u", "-c", COUNTER], stdout=file, stdin=-3, start_new_session=True
        )
    eventually("it counts", lambda: log.read_text().count("\n") > 5)
    engine.ok("take", "--pid", str(process.pid), "plain", "--stop")
    process.wait()
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(process.pid - 1))
    squatter = engine.other_process(["sleep", "600"])
    assert squatter.pid == process.pid, "the old pid belongs to a stranger now"
    before = len(log.read_text().splitlines())
    engine.restore("latest:plain")
    eventually("it counts again", lambda: len(log.read_text().splitlines()) > before + 5)
    assert squatter.poll() is None


def test_run_wait_gives_the_status_of_the_job(engine: Engine) -> None:
    assert engine.run("run", "--job-id", "a", "--wait", "--", "sh", "-c", "exit 7").code == 7
    missing = engine.run("run", "--job-id", "b", "--", "no-such-program")
    assert missing.code == 2
    assert "no-such-program could not be executed" in missing.err
    assert os.environ["PATH"] in missing.err.replace("\n", "")
    engine.ok("run", "--job-id", "c", "--label", "team=x", "--", "sleep", "600")
    assert engine.run("run", "--job-id", "c", "--", "sleep", "600").code == 3, "it runs already"
    (job,) = engine.ok("ps", "--json").json["jobs"]
    assert job["labels"] == {"team": "x"}
    engine.ok("stop", "c", "--grace", "1s")
    assert engine.run("wait", "c").code == 143


def test_environment_of_ranks(engine: Engine) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")
    code = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {names}}}))"
    engine.job("ranks", [PYTHON, "-c", code], "--nproc-per-node", "3")
    engine.ok("wait", "ranks")
    found = sorted((json.loads(line) for line in engine.log("ranks")), key=lambda e: e["RANK"])
    assert [e["RANK"] for e in found] == [e["LOCAL_RANK"] for e in found] == ["0", "1", "2"]
    assert {(e["WORLD_SIZE"], e["NNODES"], e["NODE_RANK"], e["MASTER_ADDR"]) for e in found} == {
        ("3", "1", "0", "127.0.0.1")
    }
    assert len({e["MASTER_PORT"] for e in found}) == 1


def test_follow_the_log(engine: Engine) -> None:
    engine.job("talks", ["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.3; done"])
    done = engine.ok("logs", "-f", "talks")
    assert done.out.split() == ["1", "2", "3"]


def test_a_take_beside_a_living_shadow(engine: Engine) -> None:
    """The next take does not see the shadow of the one before, nor is it a child of the job."""
    engine.counter()
    limits = take_limits(JobSize(1, 1 << 20), timedelta(seconds=5), stop=False)
    first = NodeTake(
        tree.find(engine.root("counter")), criu=find_criu(), name=f"test-{os.getpid()}", limits=limits
    )
    first.open()
    first.stop()
    first.skeleton()
    first.shadow()
    first.go()
    streams = first.streams()
    try:
        report = engine.take("counter")
        assert report["processes"] == 1
        pages = next(s for s in streams if s.name.startswith("pages/"))
        start, size = pages.source.runs()[0]
        pages.source.read_into(start, memoryview(bytearray(size)))
        for stream in streams:
            stream.source.finish()
    finally:
        first.end()
    engine.stop("counter")
    engine.restore("latest:counter")
    engine.wait_lines("counter", 5)
    engine.assert_clean()
