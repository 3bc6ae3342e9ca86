"""Files of a job that have changed between the snapshot and the restore."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.engine import COUNTER, Engine, consecutive, eventually

pytestmark = pytest.mark.root

# Writes lines into a file that is not opened for appending, and keeps reading another.
WRITER = """
import sys, time
print('writing', flush=True)
out = open(sys.argv[1], 'w', buffering=1)
data = open(sys.argv[2])
n = 0
while True:
    out.write(f'{n}\\n'); n += 1
    time.sleep(0.01)
"""


def start(engine: Engine) -> tuple[Path, Path]:
    out, data = engine.folder / "out.txt", engine.folder / "data.txt"
    data.write_text("input")
    engine.job("writer", [sys.executable, "-u", "-c", WRITER, out, data])
    eventually("it writes", lambda: out.exists() and out.read_text().count("\n") > 10)
    return out, data


def taken_and_stopped(engine: Engine) -> tuple[Path, Path]:
    out, data = start(engine)
    engine.take("writer")
    before = out.read_text().count("\n")
    eventually("it writes on", lambda: out.read_text().count("\n") > before + 20)
    engine.stop("writer")
    return out, data


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split("\n")[:-1]]


def test_a_file_that_went_on_is_a_refusal_before_anything_is_made(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    content = out.read_bytes()
    done = engine.run("restore", "latest:writer", "--json")
    assert done.code == 3
    assert done.json["code"] == "files-differ"
    assert any(str(out) in line and "grew" in line for line in done.json["evidence"])
    assert out.read_bytes() == content
    assert engine.run("ps", "--json").json["jobs"] == []


def test_rewind(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    before = out.read_bytes()
    engine.restore("latest:writer", "--files", "rewind")
    (tail,) = engine.folder.glob("out.txt.cw-tail-*")
    eventually("it writes", lambda: out.stat().st_size > len(before) - tail.stat().st_size + 50)
    engine.stop("writer")
    found = numbers(out)
    assert found == list(range(len(found))), "not a line is missing or doubled"
    assert before.endswith(tail.read_bytes())


def test_what_was_saved_is_not_overwritten(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    for count in (1, 2):
        engine.restore("latest:writer", "--files", "rewind")
        assert len(list(engine.folder.glob("out.txt.cw-tail-*"))) == count
        size = out.stat().st_size
        eventually("it writes", lambda size=size: out.stat().st_size > size)
        engine.stop("writer")


def test_keep(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    before = numbers(out)
    engine.restore("latest:writer", "--files", "keep")
    eventually("it writes", lambda: len(numbers(out)) > len(before) + 10)
    engine.stop("writer")
    found = numbers(out)
    assert found[: len(before)] == before, "later lines are kept"
    after = found[len(before) :]
    assert after == list(range(after[0], after[0] + len(after)))
    assert after[0] < before[-1], "and the job goes on behind them from its snapshot"


def test_redirect(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    before = out.read_bytes()
    elsewhere = engine.folder / "elsewhere"
    engine.restore("latest:writer", "--files", "redirect", str(elsewhere))
    copy = elsewhere / str(out).lstrip("/")
    size = copy.stat().st_size
    eventually("it writes into the copy", lambda: copy.stat().st_size > size + 50)
    engine.stop("writer")
    assert out.read_bytes() == before
    found = numbers(copy)
    assert found == list(range(len(found)))
    assert len(engine.log("writer")) > 0
    done = engine.run("restore", "latest:writer", "--files", "redirect", str(elsewhere), "--json")
    assert done.code == 3, "the copies of another incarnation are not overwritten"
    assert str(copy) in "\n".join(done.json["evidence"])


def test_redirect_needs_a_folder(engine: Engine) -> None:
    taken_and_stopped(engine)
    assert engine.run("restore", "latest:writer", "--files", "redirect", "--plan").code == 2
    assert engine.run("restore", "--files", "redirect", "latest:writer").code == 2
    assert engine.ok("ps", "--json").json["jobs"] == []


def test_the_log_of_a_lost_state_directory_is_made_again(engine: Engine) -> None:
    engine.counter()
    engine.take("counter")
    engine.stop("counter")
    Path(engine.store.find("counter").record.log).unlink()
    shutil.rmtree(engine.state / "jobs")
    assert engine.ok("restore", "latest:counter", "--plan", "--json").code == 0
    engine.restore("latest:counter")
    assert consecutive(engine.wait_lines("counter", 5))


def test_a_changed_input_is_always_a_refusal(engine: Engine) -> None:
    _, data = taken_and_stopped(engine)
    data.write_text("other")
    done = engine.run("restore", "latest:writer", "--files", "keep", "--json")
    assert done.code == 3
    assert any(str(data) in line for line in done.json["evidence"])
    data.write_text("input")
    engine.restore("latest:writer", "--files", "keep")


def test_a_missing_folder_is_a_refusal(engine: Engine) -> None:
    home = engine.folder / "home"
    home.mkdir()
    engine.job("here", [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], cwd=home)
    eventually("it began", lambda: engine.log("here") == ["1"])
    engine.take("here")
    engine.stop("here")
    home.rmdir()
    done = engine.run("restore", "latest:here", "--json")
    assert done.code == 3
    assert any(str(home) in line for line in done.json["evidence"])


def test_another_build_of_a_library_is_a_refusal(engine: Engine, tmp_path: Path) -> None:
    source, library = tmp_path / "x.c", tmp_path / "libx.so"

    def build(text: str) -> None:
        source.write_text(text)
        command = ["gcc", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", library, source]
        subprocess.run(command, check=True)

    build("int answer(void) { return 1; }")
    loop = "while True: print(x.answer(), flush=True); time.sleep(0.02)"
    code = f"import ctypes, time; x = ctypes.CDLL('{library}')\n{loop}"
    engine.job("library", [sys.executable, "-c", code])
    engine.wait_lines("library", 3)
    engine.take("library")
    engine.stop("library")
    library.unlink()
    build("int answer(void) { return 2; }")
    done = engine.run("restore", "latest:library", "--json")
    assert done.code == 3
    assert any("another build" in line or "bytes" in line for line in done.json["evidence"])


@pytest.mark.every_criu
def test_shared_memory_files_are_carried(engine: Engine, tmp_path: Path) -> None:
    """A linked file of /dev/shm: changed after the snapshot, then gone."""
    code = """
import time
from multiprocessing.shared_memory import SharedMemory
block = SharedMemory(create=True, size=8)
print(block._name, flush=True)
n = 0
while True:
    assert int.from_bytes(block.buf[:8], 'little') == n
    n += 1
    block.buf[:8] = n.to_bytes(8, 'little')
    if n % 100 == 0: print(n, flush=True)
    time.sleep(0.0001)
"""
    engine.job("board", [sys.executable, "-u", "-c", code])
    engine.wait_lines("board", 5)
    engine.take("board")
    engine.wait_lines("board", 5)
    engine.stop("board")
    path = Path("/dev/shm") / engine.log("board")[0].lstrip("/")
    done = engine.run("restore", "latest:board", "--json")
    assert done.code == 3, "it has changed since"
    aside = tmp_path / "aside"
    path.rename(aside) if path.stat().st_dev == tmp_path.stat().st_dev else path.unlink()
    before = len(engine.log("board"))
    engine.restore("latest:board")
    lines = engine.wait_lines("board", 10)[before:]
    assert all(int(b) - int(a) == 100 for a, b in pairwise(lines))
    engine.stop("board")
    path.unlink()


def test_a_name_that_is_not_utf_8(engine: Engine) -> None:
    out, data = (engine.folder / os.fsdecode(name) for name in (b"out-\xe9", b"data-\xe9"))
    data.write_text("input")
    engine.job("writer", [sys.executable, "-u", "-c", WRITER, out, data])
    eventually("it writes", lambda: out.exists() and out.read_text().count("\n") > 10)
    engine.take("writer", "--stop")
    engine.ok("restore", "latest:writer", "--plan")
    before = out.stat().st_size
    engine.restore("latest:writer")
    eventually("it writes on", lambda: out.stat().st_size > before + 20)
    engine.stop("writer")
    assert numbers(out) == list(range(len(numbers(out))))
    done = engine.run("restore", "latest:writer", "--plan", "--json")
    assert (done.code, done.json["code"]) == (3, "files-differ")
    engine.ok("restore", "latest:writer", "--plan", "--files", "rewind", "--json")


def test_a_large_sparse_file_in_memory(engine: Engine) -> None:
    path = Path(f"/dev/shm/cw-sparse-{os.getpid()}")
    code = f"""
import time
out = open({str(path)!r}, 'w+b', buffering=0); out.truncate(300 << 20)
n = 0
while True:
    out.seek(200 << 20); assert n == 0 or int(out.read(8)) == n - 1
    out.seek(200 << 20); out.write(b'%8d' % n)
    print(n, flush=True); n += 1; time.sleep(0.02)
"""
    try:
        engine.job("sparse", [sys.executable, "-u", "-c", code])
        engine.wait_lines("sparse", 3)
        engine.take("sparse")
        engine.stop("sparse")
        path.unlink()
        before = len(engine.log("sparse"))
        engine.restore("latest:sparse")
        assert consecutive(engine.wait_lines("sparse", 5)[before:])
        assert path.stat().st_size == 300 << 20
    finally:
        path.unlink(missing_ok=True)


def packs(engine: Engine) -> list[Path]:
    return sorted(p for p in (engine.repository / "packs").rglob("*") if p.is_file())


def test_no_file_is_cut_for_a_snapshot_that_is_not_whole(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    before = out.read_bytes()
    for pack in packs(engine):
        aside = engine.folder / "aside"
        pack.rename(aside)
        assert engine.run("restore", "latest:writer", "--files", "rewind", "--plan").code == 7
        assert engine.run("restore", "latest:writer", "--files", "rewind").code == 7
        aside.rename(pack)
    assert out.read_bytes() == before
    assert not list(engine.folder.glob("out.txt.cw-*"))


def test_a_failed_restore_tells_what_it_has_changed(engine: Engine) -> None:
    out, _ = taken_and_stopped(engine)
    before = out.read_bytes()
    pack = max(packs(engine), key=lambda p: p.stat().st_size)  # the one with the memory
    data = bytearray(pack.read_bytes())
    for at in range(16, len(data) - 4096, 4096):
        data[at] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    done = engine.run("restore", "latest:writer", "--files", "rewind", "--json")
    assert done.code == 7
    (tail,) = engine.folder.glob("out.txt.cw-tail-*")
    assert any(str(tail) in line and "stays so" in line for line in done.json["evidence"]), done.out
    assert out.read_bytes() + tail.read_bytes() == before
    engine.assert_clean()


def test_a_port_in_use_is_a_refusal(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code = f"import socket, time; s = socket.create_server(('127.0.0.1', {port}))\n"
    engine.job("server", [sys.executable, "-u", "-c", code + COUNTER])
    engine.wait_lines("server", 3)
    engine.take("server")
    engine.stop("server")
    with socket.create_server(("127.0.0.1", port)) as server:
        for more in ([], ["--plan"]):
            done = engine.run("restore", "latest:server", "--json", *more)
            assert (done.code, done.json["code"]) == (3, "restore-refused")
            assert f"127.0.0.1:{port}, by pid {os.getpid()}" in "\n".join(done.json["evidence"])
    engine.restore("latest:server")
    engine.wait_lines("server", 3)
