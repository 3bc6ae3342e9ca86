"""Damage is found before a task runs (P7), and what is half is never listed (P3)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from tests.engine import Engine, alive, eventually

pytestmark = pytest.mark.root

LISTENER = """
import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True: time.sleep(1)
"""


def taken(engine: Engine) -> str:
    engine.counter()
    snapshot: str = engine.take("counter")["snapshot"]
    engine.stop("counter")
    return snapshot


def objects(engine: Engine, kind: str) -> list[Path]:
    return sorted(p for p in (engine.repository / kind).rglob("*") if p.is_file())


@pytest.mark.parametrize("kind", ["packs", "manifests", "snapshots", "index"])
def test_a_flipped_bit(engine: Engine, kind: str) -> None:
    snapshot = taken(engine)
    path = objects(engine, kind)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    done = engine.run("restore", snapshot, "--json")
    assert done.code == 7, done.err
    assert path.name in done.out
    assert engine.ok("ps", "--json").json["jobs"] == []
    assert engine.run("verify", snapshot).code == 7
    engine.assert_clean()


def test_a_missing_pack(engine: Engine) -> None:
    snapshot = taken(engine)
    objects(engine, "packs")[0].unlink()
    assert engine.run("restore", snapshot, "--plan").code == 7
    done = engine.run("restore", snapshot, "--json")
    assert done.code == 7
    assert engine.run("verify", snapshot).code == 7
    engine.assert_clean()


def test_the_repository_is_gone_or_is_none(engine: Engine) -> None:
    snapshot = taken(engine)
    engine.repository.rename(engine.folder / "elsewhere")
    assert engine.run("restore", snapshot).code in (6, 8)
    assert engine.run("list").code in (6, 8)
    engine.counter("other")
    assert engine.run("take", "other").code in (6, 8), "found before the job was touched"
    engine.wait_lines("other", 5)


def test_a_full_store_costs_the_snapshot_and_not_the_job(engine: Engine) -> None:
    engine.counter()
    small = engine.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", small], check=True)
    try:
        there = {**engine.environment, "CW_SNAPSHOT_REPOSITORY": str(small / "repository")}
        engine.ok("repo", "init", env=there)
        done = engine.run("take", "counter", "--json", env=there)
        assert done.code == 5, done.err
        assert "No space left" in done.json["message"]
        assert "free space" in done.json["fix"]
        assert engine.ok("list", "--json", env=there).json["snapshots"] == []
    finally:
        subprocess.run(["umount", small], check=True)
    lines = engine.wait_lines("counter", 10)
    assert lines == [str(n) for n in range(len(lines))]
    engine.take("counter")
    engine.assert_clean()


def test_restore_that_fails_leaves_nothing(engine: Engine) -> None:
    """A UDP port of the job is taken by a stranger: criu can't bind, the half-made tree goes."""
    engine.job("server", [sys.executable, "-u", "-c", LISTENER])
    (port,) = eventually("it listens", lambda: engine.log("server"))
    engine.take("server")
    engine.stop("server")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", int(port)))
        done = engine.run("restore", "latest:server", "--json")
        assert done.code == 4, done.err
        assert any("bind" in line.lower() for line in done.json["evidence"])
        assert engine.ok("ps", "--json").json["jobs"] == []
    engine.assert_clean()
    restored = engine.restore("latest:server")
    assert alive(restored["pid"])


def test_list_show_and_rm(engine: Engine) -> None:
    snapshot = taken(engine)
    (listed,) = engine.ok("list", "--json").json["snapshots"]
    assert listed["snapshot"] == snapshot
    assert snapshot in engine.ok("list").out
    shown = engine.ok("show", snapshot[:20]).out
    assert "processes" in shown
    assert "itertools" in shown
    assert "output.log" in shown
    document = engine.ok("show", "latest:counter", "--json").json
    (tree,) = document["trees"].values()
    assert tree["processes"][0]["memory"]["data_bytes"] > 1 << 20
    engine.ok("rm", snapshot)
    assert engine.ok("list", "--json").json["snapshots"] == []
    assert engine.run("show", snapshot).code == 6


def test_doctor_finds_and_removes_what_dead_runs_left(engine: Engine) -> None:
    engine.counter()
    process = engine.start("take", "counter", stdout=-3, stderr=-3)
    guard = eventually("it has a guard", lambda: _guard_of(process.pid))
    process.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    done = engine.run("doctor", "--json")
    assert any(f["code"] == "leftover" for f in done.json["findings"]), done.out
    eventually("all is removed", lambda: _doctor_is_content(engine), 30)
    engine.wait_lines("counter", 5)


def _guard_of(command: int) -> int:
    """Pid of the guard of a command; 0 when it has none yet."""
    with suppress(procfs.ProcessGoneError):
        for child in procfs.children(command):
            if procfs.read_stat(child).comm == "cw-guard":
                return child
    return 0


def _doctor_is_content(engine: Engine) -> bool:
    engine.run("doctor", "--fix")
    found = engine.run("doctor", "--json").json["findings"]
    return not any(f["code"] == "leftover" for f in found)
