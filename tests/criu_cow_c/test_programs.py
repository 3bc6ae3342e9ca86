"""cw-init, cw-keeper and cw-ranks, as installed and with sanitizers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from tests.engine import alive, eventually

pytestmark = pytest.mark.root


class Init:
    """A job below a cw-init."""

    def __init__(self, programs: Path, folder: Path, *words: str, options: tuple[str, ...] = ()) -> None:
        self.status = folder / "status.json"
        self.log = folder / "log"
        reader, writer = os.pipe()
        command = [programs / "cw-init", "run", f"--status={self.status}", f"--ready={writer}"]
        command += [f"--stdout={self.log}", *options, "--", *words]
        outer = subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.PIPE)
        os.close(writer)
        with os.fdopen(reader) as ready:
            self.told = dict(line.strip().split(" ", 1) for line in ready)
        self.code = outer.wait(20)
        assert outer.stderr is not None
        self.complaint = outer.stderr.read().decode()
        self.pid = int(self.told.get("init", 0))

    def ended(self) -> dict[str, int]:
        eventually("the status is written", self.status.exists, 20)
        found: dict[str, int] = json.loads(self.status.read_text())
        eventually("cw-init has ended", lambda: not alive(self.pid), 20)
        return found


def test_exit_status_and_output(programs: Path, tmp_path: Path) -> None:
    job = Init(programs, tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert job.ended()["exit_code"] == 7
    assert sorted(job.log.read_text().split()) == ["err", "out"]


def test_death_by_a_signal(programs: Path, tmp_path: Path) -> None:
    ended = Init(programs, tmp_path, "sh", "-c", "kill -USR1 $$").ended()
    assert (ended["exit_code"], ended["signal"]) == (138, signal.SIGUSR1)


NAMED_SHADOW = """
import os, sys, time
if os.fork() == 0:
    open("/proc/self/comm", "w").write("cw-shadow")
    print(os.getpid(), flush=True)
    if sys.argv[1] == "bare":
        os.closerange(0, 1 << 16)
    time.sleep(600)
time.sleep(0.3)
"""


def test_a_shadow_outlives_the_job_in_any_state(programs: Path, tmp_path: Path) -> None:
    """Between the shadow maker and its keeper it runs for a moment; it is known by its name and by
    having no descriptor."""
    job = Init(programs, tmp_path, sys.executable, "-c", NAMED_SHADOW, "bare")
    eventually("the job has ended", job.status.exists)
    shadow = next(pid for pid in procfs.children(job.pid) if procfs.read_stat(pid).comm == "cw-shadow")
    time.sleep(0.1)  # cw-init ends the others at once
    assert procfs.read_stat(shadow).state == "S"
    assert alive(job.pid)
    os.kill(shadow, signal.SIGKILL)
    assert job.ended()["exit_code"] == 0


def test_the_name_alone_makes_no_shadow(programs: Path, tmp_path: Path) -> None:
    assert Init(programs, tmp_path, sys.executable, "-c", NAMED_SHADOW, "").ended()["exit_code"] == 0


def test_layout(programs: Path, tmp_path: Path) -> None:
    """pid 1 -> job root, a session leader, in namespaces of its own with their own /proc."""
    job = Init(programs, tmp_path, "sh", "-c", "cut -d' ' -f 1,4,6 /proc/self/stat; exec sleep 60")
    eventually("it began", lambda: job.log.exists() and job.log.read_text().endswith("\n"))
    root = procfs.children(job.pid)[0]
    assert procfs.ns_pid(root) == int(job.told["started"]) == 2
    assert [
        procfs.namespace(root, n) != procfs.namespace(os.getpid(), n) for n in ("pid", "mnt", "ipc", "net")
    ] == [
        True,
        True,
        True,
        False,
    ]
    assert procfs.descriptors(job.pid) == [
        *(procfs.Descriptor(n, "/dev/null") for n in range(3)),
        *(d for d in procfs.descriptors(job.pid) if d.fd > 2 and d.target == str(tmp_path)),
    ]
    assert procfs.status(root)["Seccomp"] == "2"
    assert procfs.status(root)["NoNewPrivs"] == "0", "set-uid programs go on working"
    os.kill(job.pid, signal.SIGTERM)
    assert job.ended()["signal"] == signal.SIGTERM, "signals are passed on to the root"


def test_everybody_ends_with_the_root(programs: Path, tmp_path: Path) -> None:
    job = Init(programs, tmp_path, "sh", "-c", "setsid sleep 600 & sleep 0.2; exit 0")
    assert job.ended()["exit_code"] == 0


def test_orphans_are_reaped(programs: Path, tmp_path: Path) -> None:
    job = Init(programs, tmp_path, "sh", "-c", "(sleep 0.1 &) ; (sleep 0.1 &) ; sleep 60")
    eventually("orphans are gone", lambda: len(procfs.children(job.pid)) == 1, 10)
    os.kill(job.pid, signal.SIGTERM)
    job.ended()


def test_a_command_that_does_not_exist(programs: Path, tmp_path: Path) -> None:
    job = Init(programs, tmp_path, "/no/such/program")
    assert job.told["error"].startswith("2 exec")
    assert not job.status.exists()


@pytest.mark.parametrize(
    "words", [[], ["run"], ["run", "--status=/tmp/x"], ["run", "--status=x", "--", "a"], ["fly"]]
)
def test_wrong_usage(programs: Path, words: list[str]) -> None:
    assert subprocess.run([programs / "cw-init", *words], capture_output=True, check=False).returncode == 2


def test_another_user(programs: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    options = ("--uid=65534", "--gid=65534", "--groups=65534,100")
    job = Init(programs, tmp_path, "sh", "-c", "id -u; id -g; id -G", options=options)
    assert job.ended()["exit_code"] == 0
    assert job.log.read_text().split() == ["65534", "65534", "65534", "100"]
    assert job.log.stat().st_uid == 65534


def stopped_child() -> int:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(process.pid, signal.SIGSTOP)
    eventually("it is stopped", lambda: procfs.read_stat(process.pid).state == "T", 5)
    return process.pid


class Keeper:
    def __init__(self, programs: Path, *pids: int) -> None:
        self.process = subprocess.Popen(
            [programs / "cw-keeper", *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()


def test_keeper_holds_drops_and_tells(programs: Path) -> None:
    one, two, three = (stopped_child() for _ in range(3))
    keeper = Keeper(programs, one, two, three)
    assert keeper.line() == "kept"
    os.kill(one, signal.SIGCONT)
    time.sleep(0.1)
    assert procfs.read_stat(one).state == "t", "a SIGCONT from anywhere does not set it running"
    keeper.say(f"drop {two}")
    assert keeper.line() == f"dropped {two}"
    os.kill(three, signal.SIGKILL)
    assert keeper.line() == f"dead {three}"
    keeper.say("nonsense\ndrop 999999")
    assert alive(one)
    assert keeper.process.stdin is not None
    keeper.process.stdin.close()
    assert keeper.line() == f"dropped {one}"
    assert keeper.process.wait(10) == 0


def test_shadows_die_with_their_keeper(programs: Path) -> None:
    one = stopped_child()
    keeper = Keeper(programs, one)
    assert keeper.line() == "kept"
    keeper.process.kill()
    keeper.process.wait()
    eventually("it is dead", lambda: not alive(one), 5)


def test_a_shadow_that_is_dead_already(programs: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    keeper = Keeper(programs, process.pid)
    assert keeper.line() == f"dead {process.pid}"
    assert keeper.line() == "kept"
    assert keeper.process.stdin is not None
    keeper.process.stdin.close()
    assert keeper.process.wait(10) == 0


def test_ranks(programs: Path) -> None:
    script = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK"'
    done = subprocess.run(
        [programs / "cw-ranks", "3", "1", "2", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == ["3 0 6 3 1", "4 1 6 3 1", "5 2 6 3 1"]


def test_a_failing_rank_ends_the_others(programs: Path) -> None:
    script = "[ $RANK = 1 ] && exit 9; sleep 600"
    begun = time.monotonic()
    done = subprocess.run([programs / "cw-ranks", "3", "0", "1", "--", "sh", "-c", script], check=False)
    assert done.returncode == 9
    assert time.monotonic() - begun < 20


def test_ranks_pass_signals_on(programs: Path) -> None:
    process = subprocess.Popen([programs / "cw-ranks", "2", "0", "1", "--", "sleep", "600"])
    eventually("both run", lambda: len(procfs.children(process.pid)) == 2, 10)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "words", [["x", "0", "1", "--", "a"], ["1", "5", "2", "--", "a"], ["1", "0"], ["0", "0", "1", "--", "a"]]
)
def test_wrong_usage_of_ranks(programs: Path, words: list[str]) -> None:
    assert subprocess.run([programs / "cw-ranks", *words], capture_output=True, check=False).returncode == 2
