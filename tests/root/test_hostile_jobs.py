"""Jobs of a shape that a take could harm."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.engine import Engine, consecutive, eventually, shadows_of

pytestmark = pytest.mark.root

CONNECTIONS = """
import os, socket, time
N = 250
server = socket.create_server(('127.0.0.1', 0), backlog=N)
if os.fork() == 0:
    ends = [socket.create_connection(server.getsockname()) for _ in range(N)]
    while True:
        for n, end in enumerate(ends): end.sendall(n.to_bytes(8, 'little'))
        for n, end in enumerate(ends): assert int.from_bytes(end.recv(8, socket.MSG_WAITALL), 'little') == n
        print('round', flush=True); time.sleep(0.01)
ends = [server.accept()[0] for _ in range(N)]
while True:
    for end in ends: end.sendall(end.recv(8, socket.MSG_WAITALL))
"""

SUBREAPER = """
import ctypes, itertools, os, time
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
for n in itertools.count():
    try: os.waitpid(-1, os.WNOHANG)
    except ChildProcessError: pass
    print(n, flush=True); time.sleep(0.02)
"""

CRASHES = """
import os, signal, time
signal.signal(signal.SIGCONT, lambda *_: os._exit(42))
x = bytearray(range(256)) * (1 << 18)
print(1, flush=True)
while True: time.sleep(0.01)
"""


@pytest.mark.every_criu
def test_many_connections(engine: Engine) -> None:
    """criu opens two netlink sockets for each, and libnftables aborts at descriptor 1024."""
    engine.job("many", [sys.executable, "-u", "-c", CONNECTIONS])
    engine.wait_lines("many", 3)
    engine.take("many", "--max-pause", "30s")
    engine.wait_lines("many", 3)
    engine.stop("many")
    engine.restore("latest:many")
    engine.wait_lines("many", 3)
    engine.assert_clean()


def test_too_many_connections(engine: Engine) -> None:
    engine.job("many", [sys.executable, "-u", "-c", CONNECTIONS.replace("N = 250", "N = 400")])
    engine.wait_lines("many", 3)
    done = engine.run("take", "many", "--json")
    assert (done.code, done.json["code"]) == (3, "preflight-refused")
    assert "800" in "\n".join(done.json["evidence"])
    engine.wait_lines("many", 3)


def test_a_job_that_is_a_subreaper(engine: Engine) -> None:
    """Its shadows become its own children."""
    engine.job("reaper", [sys.executable, "-u", "-c", SUBREAPER])
    engine.wait_lines("reaper", 3)
    for _ in range(3):
        engine.take("reaper")
        root = engine.root("reaper")
        children = Path(f"/proc/{root}/task/{root}/children")
        eventually("no shadow is left", lambda children=children: not children.read_text(), 10)
    engine.stop("reaper")
    engine.restore("latest:reaper")
    assert consecutive(engine.wait_lines("reaper", 3)[-3:])


@pytest.mark.parametrize("advice", ["dont", "wipe"])
def test_executable_memory_that_forks_leave_out(engine: Engine, built: dict[str, Path], advice: str) -> None:
    engine.job("odd", [built["odd_text"], advice])
    engine.wait_lines("odd", 3)
    engine.run("take", "odd")
    engine.wait_lines("odd", 5)
    engine.assert_clean()


def test_a_job_that_crashes_right_after_the_pause(engine: Engine) -> None:
    """Its snapshot is the one that is needed."""
    for n in range(4):
        engine.job(f"crash{n}", [sys.executable, "-c", CRASHES])
        eventually("it began", lambda n=n: engine.log(f"crash{n}") == ["1"])
        engine.take(f"crash{n}")
        assert engine.run("wait", f"crash{n}").code == 42
        engine.ok("verify", f"latest:crash{n}")
    engine.assert_clean()


def test_two_takes_of_one_tree_under_two_names(engine: Engine) -> None:
    engine.counter()
    root = str(engine.root("counter"))
    for _ in range(5):
        takes = [
            engine.start("take", *words, stdout=-3, stderr=-3)
            for words in (["counter"], ["--pid", root], ["--pid", root, "other"])
        ]
        codes = sorted(take.wait(60) for take in takes)
        assert codes[0] == 0
        assert set(codes) <= {0, 3}
        engine.wait_lines("counter", 3)
    assert consecutive(engine.log("counter"))
    engine.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_at_random(engine: Engine, number: signal.Signals) -> None:
    engine.counter()
    generator = random.Random(int(number))  # noqa: S311
    for _ in range(8):
        take = engine.start("take", "counter", stdout=-3, stderr=-3)
        time.sleep(generator.uniform(0.15, 0.6))
        take.send_signal(number)
        assert take.wait(60) in (0, 4, 5, -number)
        eventually("no shadow is left", lambda: not shadows_of(engine, "counter"), 20)
    engine.wait_lines("counter", 3)
    assert consecutive(engine.log("counter"))
    engine.assert_clean()


def test_stop_of_a_job_that_ignores_sigterm(engine: Engine) -> None:
    """However short the grace, `stop` tells of the end when it has come."""
    engine.job("deaf", ["sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done"])
    eventually("it began", lambda: engine.log("deaf") == ["on"])
    assert engine.ok("stop", "deaf", "--grace", "0", "--json").json["state"] == "ended"
