"""Readings of /proc, on our own process and on hostile names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.procfs import ProcessGoneError


def test_stat_with_a_name_that_looks_like_stat() -> None:
    text = "12 (a) R 1 (b)) S 7 8 9 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 4711 0"
    stat = procfs._parse_stat(text)
    assert (stat.pid, stat.comm, stat.state, stat.ppid, stat.session) == (12, "a) R 1 (b)", "S", 7, 9)
    assert stat.starttime == 4711


def test_mapping_lines() -> None:
    line = "7f00-7f10 rw-p 00001000 fe:01 42                         /tmp/a file (deleted)"
    mapping = procfs._parse_mapping(line)
    assert mapping is not None
    assert (mapping.start, mapping.size, mapping.private) == (0x7F00, 0x10, True)
    assert mapping.name == "/tmp/a file (deleted)"
    assert procfs._parse_mapping("Size:                  4 kB") is None


def test_ourselves() -> None:
    pid = os.getpid()
    assert procfs.read_stat(pid).ppid == os.getppid()
    assert pid in procfs.thread_ids(pid)
    assert procfs.ns_pid(pid) > 0
    spans = {(m.start, m.end) for m in procfs.mappings(pid)}
    assert len(spans & set(procfs.vm_flags(pid))) > 20
    assert any(d.fd == 0 for d in procfs.descriptors(pid))
    assert procfs.meminfo()["MemTotal"] > 1 << 28


def test_children_of_other_threads_are_found() -> None:
    code = (
        "import subprocess, threading, time\n"
        "threading.Thread(target=lambda: subprocess.run(['sleep', '60'])).start()\n"
        "time.sleep(0.5)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        (child,) = procfs.children(process.pid)
        assert procfs.read_stat(child).comm == "sleep"
        os.kill(child, 9)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    for reading in (procfs.read_stat, procfs.thread_ids, procfs.status, procfs.mappings, procfs.descriptors):
        with pytest.raises(ProcessGoneError):
            reading(process.pid)
