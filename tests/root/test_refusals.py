"""What can't be snapshotted is refused before anything is stopped, or undone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from tests.engine import COMMAND, Engine, alive, eventually, states

pytestmark = pytest.mark.root

COUNT = "n = 0\nwhile True:\n    print(n, flush=True); n += 1; time.sleep(0.02)\n"
IO_URING = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(425, 4, ctypes.create_string_buffer(256))
assert fd >= 0, ctypes.get_errno()
"""
FUSE = "import os, time\nos.open('/dev/fuse', os.O_RDWR)\n"
TRACED = """
import ctypes, os, time
if os.fork() == 0:
    while True: time.sleep(1)
"""


def refused(engine: Engine, job: str, *words: str) -> str:
    """Take, expect a refusal that left the job alone; returns the evidence."""
    engine.wait_lines(job, 3)
    root = engine.root(job)
    before = states(root)
    done = engine.run("take", job, "--json")
    assert done.code == 3, done.err
    assert done.json["schema"] == "cw-snapshot/error/1"
    evidence = "\n".join(done.json["evidence"])
    for word in words:
        assert word in evidence
    assert states(root).keys() == before.keys()
    engine.wait_lines(job, 3)
    engine.assert_clean()
    return evidence


def test_io_uring_is_refused_with_pid_descriptor_and_fix(engine: Engine) -> None:
    engine.job("ring", [sys.executable, "-u", "-c", IO_URING + COUNT], "--allow-io-uring")
    refused(engine, "ring", "io_uring", "fd 3", f"pid {engine.root('ring')}", "cw-snapshot run")


def test_io_uring_does_not_exist_for_a_job(engine: Engine) -> None:
    code = "import ctypes\nprint(ctypes.CDLL(None, use_errno=True).syscall(425, 4, 0), ctypes.get_errno())"
    engine.job("none", [sys.executable, "-c", code])
    engine.ok("wait", "none")
    assert engine.log("none") == ["-1 38"], "ENOSYS"


def test_a_foreign_device_is_refused(engine: Engine) -> None:
    if not Path("/dev/fuse").exists():
        os.mknod("/dev/fuse", 0o20600, os.makedev(10, 229))
    engine.job("fuse", [sys.executable, "-u", "-c", FUSE + COUNT])
    refused(engine, "fuse", "/dev/fuse", "fd 3")


def test_sysv_shared_memory_of_the_host_is_refused(engine: Engine, built: dict[str, Path]) -> None:
    log = engine.folder / "shm.log"
    with log.open("ab") as file:
        process = engine.other_process([built["sysv_shm"]], stdout=file, stdin=-3, start_new_session=True)
    eventually("it runs", lambda: log.read_text().count("\n") > 3)
    done = engine.run("take", "--pid", str(process.pid), "--json")
    assert done.code == 3
    assert "SysV" in "\n".join(done.json["evidence"])
    assert process.poll() is None


def test_sysv_shared_memory_of_a_job_is_its_own(engine: Engine, built: dict[str, Path]) -> None:
    engine.job("shm", [built["sysv_shm"]])
    engine.wait_lines("shm", 3)
    engine.take("shm")
    engine.stop("shm")
    before = len(engine.log("shm"))
    engine.restore("latest:shm")
    lines = [int(n) for n in engine.wait_lines("shm", 5)[before:]]
    assert lines == list(range(lines[0], lines[0] + len(lines)))


def test_a_unix_connection_to_the_outside_is_refused(engine: Engine) -> None:
    path = str(engine.folder / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        code = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.connect({path!r})\n"
        engine.job("client", [sys.executable, "-u", "-c", code + COUNT])
        accepted, _ = server.accept()
        with accepted:
            refused(engine, "client", "unix", "fd 3", f"pid {engine.root('client')}")


def test_a_tcp_connection_to_the_outside_is_told(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port}))\n"
        engine.job("client", [sys.executable, "-u", "-c", code + COUNT])
        accepted, _ = server.accept()
        with accepted:
            (finding,) = engine.plan("client")["findings"]
            assert (finding["code"], finding["severity"]) == ("tcp-outside", "warning")
            assert f"127.0.0.1:{port}" in finding["evidence"]


def test_a_file_in_memory_that_is_too_large_is_refused(engine: Engine) -> None:
    path = Path(f"/dev/shm/cw-large-{os.getpid()}")
    code = f"import time\nf = open({str(path)!r}, 'wb'); f.truncate(1 << 45)\n"
    try:
        engine.job("sparse", [sys.executable, "-u", "-c", code + COUNT])
        refused(engine, "sparse", f"fd 3 -> {path}", str(1 << 45), f"pid {engine.root('sparse')}")
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("around", "code", "words"),
    [
        (["unshare", "--uts"], "other-namespace", ["another uts namespace"]),
        (["unshare", "--mount", "--net"], "other-namespace", ["another mount and network namespace"]),
        (["chroot", "/proc/self/root/proc/../dev/.."], "", []),  # the same folder
        (["BIND"], "chroot", ["root -> "]),
    ],
)
def test_a_process_that_lives_elsewhere(
    engine: Engine, around: list[str], code: str, words: list[str]
) -> None:
    new_root = engine.folder / "root"
    if around == ["BIND"]:
        new_root.mkdir()
        subprocess.run(["mount", "--rbind", "/", new_root], check=True)
        around = ["chroot", str(new_root)]
    try:
        child = [*around, sys.executable, "-c", "import time; time.sleep(600)"]
        start = f"import subprocess, time; p = subprocess.Popen({child!r})\n"
        engine.job("elsewhere", [sys.executable, "-u", "-c", start + COUNT])
        engine.wait_lines("elsewhere", 20)
        findings = engine.run("take", "elsewhere", "--plan", "--json").json["findings"]
        if not code:
            assert findings == []
            return
        (pid,) = procfs.children(engine.root("elsewhere"))
        (finding,) = [f for f in findings if f["code"] == code]
        assert f"pid {pid} (" in finding["evidence"]
        for word in words:
            assert word in finding["what"] + finding["evidence"]
        refused(engine, "elsewhere", *words)
    finally:
        engine.stop("elsewhere")
        if new_root.exists():
            subprocess.run(["umount", "--recursive", "--lazy", new_root], check=True)


def test_mounts_of_a_root_s_own_are_refused(engine: Engine) -> None:
    process = engine.other_process(
        ["unshare", "--mount", sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=-3,
        stdout=-3,
        stderr=-3,
        start_new_session=True,
    )
    ours = procfs.namespace(os.getpid(), "mnt")
    eventually("it has them", lambda: procfs.namespace(process.pid, "mnt") != ours)
    done = engine.run("take", "--pid", str(process.pid), "--json")
    assert done.code == 3
    assert "mounts would be lost" in "\n".join(done.json["evidence"])
    assert f"pid {process.pid}" in "\n".join(done.json["evidence"])


def test_a_shell_that_would_see_its_job_stop_is_refused(engine: Engine) -> None:
    log = engine.folder / "fg.log"
    count = f"{sys.executable} -u -c 'import time\n{COUNT}' > {log} 2>&1 < /dev/null"
    script = f"set -m\n{count} &\nfg\necho left\n"
    shell = engine.other_process(
        ["bash", "-c", script], stdin=-3, stdout=subprocess.PIPE, stderr=-3, start_new_session=True
    )
    eventually("it counts", lambda: log.exists() and log.read_text().count("\n") > 3)
    (root,) = procfs.children(shell.pid)
    done = engine.run("take", "--pid", str(root), "--json")
    assert done.code == 3, done.out
    (line,) = done.json["evidence"]
    assert f"pid {shell.pid} (bash)" in line
    assert "cw-snapshot run" in line
    assert shell.poll() is None


def test_a_file_whose_other_name_is_deleted_is_refused(engine: Engine) -> None:
    path = engine.folder / "linked"
    code = (
        f"import os, time; f = open({str(path)!r}, 'w'); os.link(f.name, f.name + '2'); os.unlink(f.name)\n"
    )
    engine.job("linked", [sys.executable, "-u", "-c", code + COUNT])
    refused(engine, "linked", f"fd 3 -> {path} (deleted)", f"pid {engine.root('linked')}")


def test_pid_1_is_refused(engine: Engine) -> None:
    done = engine.run("take", "--pid", "1", "--json")
    assert done.code == 3
    assert done.json["code"] == "preflight-refused"


def test_a_plan_tells_a_refusal_by_its_status(engine: Engine) -> None:
    engine.job("ring", [sys.executable, "-u", "-c", IO_URING + COUNT], "--allow-io-uring")
    eventually("it has its ring", lambda: engine.log("ring"))
    assert engine.run("take", "ring", "--plan").code == 3


def test_a_name_that_is_taken(engine: Engine) -> None:
    engine.counter()
    engine.take("counter", "--name", "best")
    for name in ("best", "latest"):
        done = engine.run("take", "counter", "--name", name, "--json")
        assert (done.code, done.json["code"]) == (3, "name-taken")
    assert engine.ok("show", "best", "--json").json["name"] == "best"


def test_force_tries_and_undoes(engine: Engine) -> None:
    engine.job("ring", [sys.executable, "-u", "-c", IO_URING + COUNT], "--allow-io-uring")
    engine.wait_lines("ring", 3)
    done = engine.run("take", "ring", "--force", "--json")
    assert done.code == 4, done.err
    assert any("criu's log" in line for line in done.json["evidence"])
    lines = engine.wait_lines("ring", 10)
    assert lines == [str(n) for n in range(len(lines))]
    assert engine.ok("list", "--json").json["snapshots"] == []
    engine.assert_clean()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_our_own_tree_is_refused(engine: Engine, force: list[str]) -> None:
    done = engine.run("take", "--pid", str(os.getpid()), "--json", *force, "--plan")
    assert done.code == 3
    done = engine.run("take", "--pid", str(os.getpid()), "--json", *force)
    assert (done.code, done.json["code"]) == (3, "preflight-refused")
    assert "part of the tree" in "\n".join(done.json["evidence"])


def test_unknown_jobs_and_snapshots(engine: Engine) -> None:
    assert engine.run("take", "nobody").code == 6
    assert engine.run("restore", "latest:nobody").code == 6
    assert engine.run("take", "../x").code == 2
    assert engine.run("take").code == 2


def test_a_storm_of_sigcont_gives_a_right_snapshot_or_none(engine: Engine, built: dict[str, Path]) -> None:
    engine.job("regions", [built["regions"], engine.folder / "mapped.bin"])
    engine.wait_lines("regions", 3)
    root = engine.root("regions")
    storm = engine.other_process(
        [sys.executable, "-c", f"import os, time\nwhile True:\n os.kill({root}, 18); time.sleep(0.001)"]
    )
    outcomes = [engine.run("take", "regions").code for _ in range(4)]
    storm.kill()
    storm.wait()
    assert set(outcomes) <= {0, 4}, outcomes
    from tests.root.test_regions import assert_whole

    assert_whole(engine.wait_lines("regions", 10))
    engine.stop("regions")
    for snapshot in engine.ok("list", "--json").json["snapshots"]:
        engine.restore(snapshot["snapshot"])
        assert_whole(engine.wait_lines("regions", 10))
        engine.stop("regions")
    engine.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_take_that_is_interrupted_leaves_the_job_alone(engine: Engine, number: signal.Signals) -> None:
    engine.job("counter", [sys.executable, "-u", "-c", "import time\n" + COUNT])
    engine.wait_lines("counter", 3)
    root = engine.root("counter")
    for delay in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9):
        process = engine.start("take", "counter", stdout=-3, stderr=-3)
        time.sleep(delay)
        process.send_signal(number)
        code = process.wait(30)
        assert code in (0, 4, 5, -number), code  # -number: before the job was touched
        assert alive(root)
        eventually("nothing is stopped", lambda: set(states(root).values()) <= {"S", "R"}, 5)
    lines = engine.wait_lines("counter", 10)
    assert lines == [str(n) for n in range(len(lines))]
    engine.assert_clean()


def test_too_little_memory_for_buffers_is_refused_before_the_pause(engine: Engine) -> None:
    engine.counter()
    done = engine.run("take", "counter", "--limit-memory", "1M", "--json")
    assert done.code == 2
    assert "pause" not in done.err
    engine.ok("take", "counter", "--limit-memory", "200M")
    engine.assert_clean()


def test_a_read_only_repository_is_noticed_before_the_pause(engine: Engine) -> None:
    engine.counter()
    root = engine.root("counter")
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$0" take counter --json'
    words = ["unshare", "-m", "bash", "-c", script, str(COMMAND), str(engine.repository)]
    done = subprocess.run(words, env=engine.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 8, done.stderr
    assert json.loads(done.stdout)["code"] == "store-read-only"
    assert engine.root("counter") == root
    engine.assert_clean()
