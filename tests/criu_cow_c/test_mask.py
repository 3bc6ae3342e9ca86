"""The page mask answers as criu must be answered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.vm_flags import write_table

pytestmark = pytest.mark.root

PAGE = 4096
# Three mappings without a gap: private, shared, private; eight pages each, all written.
JOB = """
import ctypes, mmap, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
base = libc.mmap(None, 24 * 4096, 3, 0x22, -1, 0)
assert libc.mmap(base + 8 * 4096, 8 * 4096, 3, 0x31, -1, 0) == base + 8 * 4096
ctypes.memset(base, 1, 24 * 4096)
print(hex(base), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Job:
    pid: int
    base: int

    def at(self, page: int) -> int:
        return self.base + page * PAGE


@pytest.fixture
def job() -> Iterator[Job]:
    process = subprocess.Popen(["python3", "-c", JOB], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Job(process.pid, int(process.stdout.readline(), 16))
    process.kill()
    process.wait()


def environment_of(*, active: bool, old: bool) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment |= {"CW_COW_JOURNAL": "0"} if active else {}
    return environment | ({"CW_COW_TEST_NO_PAGEMAP_SCAN": "1"} if old else {})


def ask(
    driver: Path, job: Job, how: str, start: int, end: int, *more: int, active: bool = True, old: bool = False
) -> tuple[list[range], dict[str, int]]:
    """Ranges of pages found by "scan" or "read", and what the mask has counted."""
    environment = environment_of(active=active, old=old)
    words = [how, str(job.pid), *(f"{n:x}" for n in (job.at(start), job.at(end), *more))]
    done = subprocess.run([driver, *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    *regions, last = done.stdout.splitlines()
    pages = [range(*((int(x, 16) - job.base) // PAGE for x in line.split())) for line in regions]
    names, values = last.split()[::2], last.split()[1::2]
    counted = {n: int(v, 16 if n == "end" else 10) for n, v in zip(names, values, strict=True)}
    assert (counted.pop("end") - job.base) // PAGE == end
    return pages, {name: count for name, count in counted.items() if count}


def test_wholly_private_ranges_are_answered_without_a_walk(drivers: dict[str, Path], job: Job) -> None:
    assert ask(drivers["mask"], job, "scan", 0, 8) == ([], {"answered": 1})
    assert ask(drivers["mask"], job, "read", 0, 8) == ([], {"reads-answered": 1})


def test_shared_pages_pass_and_private_ones_do_not(drivers: dict[str, Path], job: Job) -> None:
    regions, counted = ask(drivers["mask"], job, "scan", 0, 24)
    assert regions == [range(8, 16)], "one region of the kernel spans all three mappings"
    assert counted == {"walked": 1}
    pages, counted = ask(drivers["mask"], job, "read", 0, 24)
    assert pages == [range(n, n + 1) for n in range(8, 16)]
    assert counted == {"reads-walked": 1}


def test_reads_need_not_begin_where_a_mapping_does(drivers: dict[str, Path], job: Job) -> None:
    for start, end, found in ((3, 10, [8, 9]), (9, 14, [*range(9, 14)]), (15, 20, [15])):
        pages, _ = ask(drivers["mask"], job, "read", start, end)
        assert pages == [range(n, n + 1) for n in found]


def test_a_vector_that_is_too_small_ends_the_walk_early(drivers: dict[str, Path], job: Job) -> None:
    regions, _ = ask(drivers["mask"], job, "scan", 8, 16, 0x18, 1)
    assert regions == [range(8, 16)]


def test_guard_scans_pass(drivers: dict[str, Path], job: Job) -> None:
    """criu 4.2 finds guard regions that way and restores them; nobody else can."""
    assert ask(drivers["mask"], job, "scan", 0, 8, 0x118) == ([range(8)], {"passed": 1})


def test_without_a_journal_nothing_is_masked(drivers: dict[str, Path], job: Job) -> None:
    for old in (False, True):
        assert ask(drivers["mask"], job, "scan", 0, 24, active=False, old=old) == ([range(24)], {})
    assert len(ask(drivers["mask"], job, "read", 0, 24, active=False)[0]) == 24


def test_the_switch_answers_as_an_old_kernel_does(drivers: dict[str, Path], job: Job) -> None:
    with pytest.raises(AssertionError, match="Inappropriate ioctl for device"):
        ask(drivers["mask"], job, "scan", 0, 8, old=True)
    assert ask(drivers["mask"], job, "read", 0, 8, old=True) == ([], {"reads-answered": 1})


@pytest.mark.parametrize("name", ["criu.kdat", "criu.kdat.tmp", "kdat"])
def test_the_switch_hides_what_criu_knows_of_the_kernel(
    drivers: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Neither is a file believed that another criu wrote, nor one written that others would believe."""
    for active, old in ((True, False), (False, True), (True, True)):
        done = subprocess.run(
            [drivers["mask"], "open", tmp_path / name],
            env=environment_of(active=active, old=old),
            stderr=subprocess.PIPE,
            check=False,
        )
        hidden = active and old and name != "kdat"
        assert done.returncode == hidden, done.stderr


def flags_of(text: str) -> dict[str, str]:
    """VmFlags by the first word of the mapping's line."""
    found, current = {}, ""
    for line in text.splitlines():
        if line.startswith("VmFlags:"):
            found[current] = line.partition(":")[2].strip()
        elif line[0] in "0123456789abcdef":
            current = line.split()[0]
    return found


def test_smaps_without_a_walk(drivers: dict[str, Path], job: Job, tmp_path: Path) -> None:
    real = procfs.vm_flags(job.pid)
    known = dict(real)
    plain = (job.at(0), job.at(8))
    del known[plain]  # as if it had been mapped since
    os.close(write_table(tmp_path / "table", {1: {(0, 4096): "rd"}, job.pid: known, 99999: {}}))
    command = [drivers["vmflags"], str(job.pid), tmp_path / "table"]
    made = flags_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert made.keys() == {f"{s:08x}-{e:08x}" for s, e in real}
    for (start, end), text in real.items():
        found = made[f"{start:08x}-{end:08x}"]
        assert set(found.split()) == set(text.split()) - ({"sd"} if (start, end) == plain else set())


def test_smaps_of_an_unknown_file_mapping_need_the_kernel(
    drivers: dict[str, Path], job: Job, tmp_path: Path
) -> None:
    known = dict(procfs.vm_flags(job.pid))
    library = next(m for m in procfs.mappings(job.pid) if "libc" in m.name)
    del known[library.start, library.end]
    os.close(write_table(tmp_path / "table", {job.pid: known}))
    command = [drivers["vmflags"], str(job.pid), tmp_path / "table"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
