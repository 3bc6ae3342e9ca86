"""Every kind of mapping, byte by byte, in the job that was taken and in the one restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from tests.engine import Engine
from tests.groups import control_group

pytestmark = pytest.mark.root

HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


def assert_whole(lines: list[str]) -> None:
    broken = [line for line in lines if not line.endswith(" ok") and not line.startswith("note:")]
    assert not broken, broken[:5]


def advised(pid: int) -> set[str]:
    """The VmFlags that occur in a process and were asked for."""
    found = {name for text in procfs.vm_flags(pid).values() for name in text.split()}
    return found & {"dc", "dd", "wf", "mg", "hg", "nh", "gd", "lo", "nr", "ht", "sr", "rr"}


@pytest.fixture
def huge_pages() -> None:
    """A few huge pages for MAP_HUGETLB; left reserved, they cost 16 MiB."""
    if int(HUGE_PAGES.read_text()) < 8:
        HUGE_PAGES.write_text("8")
    assert int(HUGE_PAGES.read_text()) >= 4, "the kernel gave no huge pages"


@pytest.mark.every_criu
@pytest.mark.usefixtures("huge_pages")
def test_every_mapping_in_the_taken_and_the_restored_job(engine: Engine, built: dict[str, Path]) -> None:
    engine.job("regions", [built["regions"], engine.folder / "mapped.bin", "hugetlb"])
    engine.wait_lines("regions", 5)
    flags = advised(engine.root("regions"))
    assert {"dc", "wf", "mg", "hg", "gd", "lo"} <= flags
    for _ in range(3):
        engine.take("regions")
        assert_whole(engine.wait_lines("regions", 10))
    engine.stop("regions")
    before = len(engine.log("regions"))
    engine.restore("latest:regions")
    lines = engine.wait_lines("regions", 20)
    assert_whole(lines)
    assert advised(engine.root("regions")) == flags
    rounds = [int(line.split()[0]) for line in lines[before:]]
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
    # And a snapshot of the restored one.
    engine.take("regions")
    engine.stop("regions")
    engine.restore("latest:regions")
    assert_whole(engine.wait_lines("regions", 20))


@pytest.mark.every_criu
def test_guard_regions_are_kept_or_refused_but_never_lost(engine: Engine, built: dict[str, Path]) -> None:
    engine.job("guards", [built["regions"], engine.folder / "mapped.bin", "guards"])
    engine.wait_lines("guards", 3)
    done = engine.run("take", "guards", "--json")
    if engine.variant.keeps_guards:
        assert done.code == 0, done.err
        engine.stop("guards")
        engine.restore("latest:guards")
    else:
        assert done.code == 3
        assert any("guard regions" in line for line in done.json["evidence"])
        assert "guard-region" not in done.json["message"]
    assert_whole(engine.wait_lines("guards", 10))


@pytest.mark.every_criu
def test_pages_read_from_the_stopped_job_when_no_shadow_can_be_made(
    engine: Engine, built: dict[str, Path]
) -> None:
    """A pids limit that leaves no room for a clone: a longer pause, the same snapshot."""
    engine.job("regions", [built["regions"], engine.folder / "mapped.bin"])
    engine.wait_lines("regions", 3)
    with control_group("pids") as group:
        (group / "cgroup.procs").write_text(str(engine.root("regions")))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        report = engine.take("regions")
        assert len(report["without_shadow"]) == 1
        assert "Resource temporarily unavailable" in report["without_shadow"][0]
        assert_whole(engine.wait_lines("regions", 10))
        engine.stop("regions")
    engine.restore("latest:regions")
    assert_whole(engine.wait_lines("regions", 20))
    engine.assert_clean()
