"""Memory that forked processes share is stored once and comes back shared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cw_snapshot.snapshot import tree
from tests.engine import Engine, eventually

pytestmark = pytest.mark.root

MIB = 1 << 20
SIZE_MIB = 200

# A parent with four children and a grandchild. Everybody writes somewhere after the forks, gives
# pages back, and prints a hash of all that it can see.
FAMILY = f"""
import hashlib, mmap, os, sys, time
area = mmap.mmap(-1, {SIZE_MIB} << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE)
for at in range(0, len(area), 4096): area[at:at + 8] = at.to_bytes(8, 'little')
for at in range(0, len(mapped), 8192): mapped[at:at + 1] = b'x'
name = 'parent'
for number in range(4):
    if os.fork() == 0:
        name = f'child{{number}}'
        area[number << 20:(number << 20) + 4096] = name[:1].encode() * 4096
        area.madvise(mmap.MADV_DONTNEED, (20 + number) << 20, 1 << 20)
        mapped.madvise(mmap.MADV_DONTNEED, number << 16, 1 << 16)
        mapped[(1 << 18) + (number << 14):(1 << 18) + (number << 14) + 4096] = bytes(4096)
        if number == 3:
            area[50 << 20:60 << 20] = b'3' * (10 << 20)
            if os.fork() == 0:
                name = 'grandchild'
                area[51 << 20:52 << 20] = b'g' * (1 << 20)
        break
if name == 'parent':
    area[100 << 20:102 << 20] = b'p' * (2 << 20)
while True:
    seen = hashlib.sha256()
    for block in range(0, len(area), 1 << 20): seen.update(area[block:block + (1 << 20)])
    seen.update(mapped[:])
    os.write(1, f'{{name}} {{seen.hexdigest()}}\\n'.encode())
    time.sleep(0.2)
"""


def seen(engine: Engine, skip: int = 0) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in engine.log("family")[skip:]:
        name, _, value = line.partition(" ")
        found.setdefault(name, set()).add(value)
    return found


def memory_of(root: int) -> int:
    """Proportional memory of a whole tree, in bytes."""
    total = 0
    for member in tree.find(root).members:
        for line in Path(f"/proc/{member.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


@pytest.mark.every_criu
def test_shared_memory_comes_back_shared(engine: Engine) -> None:
    data = engine.folder / "data"
    data.write_bytes(bytes(range(256)) * (1 << 12))
    engine.job("family", [sys.executable, "-u", "-c", FAMILY, data])
    eventually("all six have begun", lambda: len(seen(engine)) == 6)
    eventually("they go on", lambda: len(engine.log("family")) > 18)
    before = seen(engine)
    assert all(len(values) == 1 for values in before.values())
    memory_before = memory_of(engine.root("family"))
    report = engine.take("family")
    assert report["pages"]["seen_bytes"] < (SIZE_MIB + 80) * MIB, "shared pages are read once"
    at = len(engine.log("family"))
    eventually("they go on", lambda: len(engine.log("family")) > at + 12)
    assert seen(engine) == before
    engine.stop("family")
    engine.run("verify", "latest:family")
    at = len(engine.log("family"))
    engine.restore("latest:family")
    eventually("all six are back", lambda: len(seen(engine, at)) == 6)
    assert seen(engine, at) == before, "everybody has its own memory"
    assert memory_of(engine.root("family")) <= 1.1 * memory_before
    engine.take("family")
    engine.stop("family")
    at = len(engine.log("family"))
    engine.restore("latest:family")
    eventually("all six are back again", lambda: len(seen(engine, at)) == 6)
    assert seen(engine, at) == before
    assert memory_of(engine.root("family")) <= 1.1 * memory_before
    engine.assert_clean()
