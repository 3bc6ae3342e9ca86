"""Parents that see their children stop, and files with two names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs, surroundings
from cw_snapshot.snapshot.surroundings import waits_for_stops

ANY = "0xffffffffffffffff"
REST = "0x0 0x0 0x7ffd 0x7f00\n"


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (f"61 {ANY} 0x7ffd 0xa 0x0 {REST}", True),  # bash with job control
        (f"61 0xffffffff 0x7ffd 0x2 0x0 {REST}", True),
        (f"61 0x0 0x7ffd 0x2 0x0 {REST}", True),  # its process group
        (f"61 0x2a 0x7ffd 0x2 0x0 {REST}", True),
        (f"61 0x2b 0x7ffd 0x2 0x0 {REST}", False),  # for another child
        (f"61 {ANY} 0x7ffd 0x0 0x0 {REST}", False),
        (f"247 0x0 0x0 0x7ffd 0x6 {REST}", True),
        (f"247 0x1 0x2a 0x7ffd 0x6 {REST}", True),
        (f"247 0x1 0x2b 0x7ffd 0x6 {REST}", False),
        (f"247 0x1 0x2a 0x7ffd 0x4 {REST}", False),
        (f"0 0x3 0x2 0x2 0x2 {REST}", False),
        ("running\n", False),
        ("-1 0x7ffd 0x7f00\n", False),
    ],
)
def test_waits_for_stops(call: str, seen: bool) -> None:
    assert waits_for_stops(call, {42, 7}) is seen


def test_names_that_are_deleted(tmp_path: Path) -> None:
    """One with another name, one with none, one that is really called so, a memfd."""
    code = """
import os, sys, time
os.chdir(sys.argv[1])
kept = [open(name, 'w') for name in ('linked', 'gone', 'odd (deleted)')]
os.link('linked', 'other'); os.unlink('linked'); os.unlink('gone')
kept.append(os.memfd_create('x'))
print('ready', flush=True); time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = process.pid
        found = list(surroundings.deleted_links("pid 1", pid, procfs.descriptors(pid), procfs.mappings(pid)))
        process.kill()
    assert [f.evidence for f in found] == [f"pid 1 fd 3 -> {tmp_path}/linked (deleted)"]


def test_our_ancestors() -> None:
    assert os.getppid() in surroundings._ancestors(os.getpid())
    assert os.getpid() not in surroundings._ancestors(os.getpid())
