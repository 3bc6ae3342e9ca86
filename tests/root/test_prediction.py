"""Predictions, what came of them, and huge pages made before a take."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from cw_snapshot.snapshot import procfs
from tests.engine import Engine, consecutive, eventually

pytestmark = pytest.mark.root

MIB = 1 << 20

# 128 MiB in small pages, checked all the time. What forked workers share and what is mostly empty
# must be left alone by a collapse. Huge pages are forbidden until SIGUSR1 comes: khugepaged would make some.
LOOSE = """
import hashlib, mmap, os, signal, time
def area(size):
    made = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made.madvise(mmap.MADV_NOHUGEPAGE)
    return made
def allow(*_):
    for made in (common, full, sparse): made.madvise(mmap.MADV_HUGEPAGE)
    print(-1, flush=True)
common = area(32 << 20)
for at in range(0, len(common), 4096): common[at:at + 8] = at.to_bytes(8, 'little')
if os.fork() == 0:
    while True: time.sleep(1)
full, sparse = area(64 << 20), area(32 << 20)
for at in range(0, len(full), 4096): full[at:at + 8] = (at + 1).to_bytes(8, 'little')
for at in range(0, len(sparse), 8192): sparse[at:at + 8] = (at + 2).to_bytes(8, 'little')
signal.signal(signal.SIGUSR1, allow)
wanted = [hashlib.sha256(m).hexdigest() for m in (common, full, sparse)]
n = 0
while True:
    full[n % 16384 * 4096 + 9:n % 16384 * 4096 + 10] = b'x'  # written to while pages are moved
    full[n % 16384 * 4096 + 9:n % 16384 * 4096 + 10] = bytes(1)
    if n % 50 == 0: assert [hashlib.sha256(m).hexdigest() for m in (common, full, sparse)] == wanted
    print(n, flush=True); n += 1; time.sleep(0.01)
"""


def compared(report: dict[str, object], name: str) -> dict[str, float]:
    found = report["compared"]
    assert isinstance(found, dict)
    pair: dict[str, float] = found[name]
    return pair


def test_predicted_and_actual_side_by_side(engine: Engine) -> None:
    engine.counter()
    plan = engine.plan("counter")["predicted"]
    assert plan["rates"]["source"].startswith("assumed")
    assert plan["machine"]["measured"]
    report = engine.take("counter")
    pause = compared(report, "pause_seconds")
    assert pause["actual"] == report["pause_seconds"]
    assert pause["predicted"] == report["predicted"]["pause_seconds"]
    assert compared(report, "durable_seconds")["actual"] == report["durable_seconds"]
    read = compared(report, "read_bytes")
    assert read["actual"] == report["pages"]["seen_bytes"]
    assert abs(read["actual"] - read["predicted"]) < 8 * MIB
    stored = compared(report, "stored_bytes")
    assert stored["predicted"] is None
    assert 0 < stored["actual"] <= stored["at_most"]
    extra = compared(report, "extra_memory_bytes")
    assert 0 <= extra["actual"] <= extra["at_most"]
    # The same in the record of the operation and in the commit.
    (record,) = (engine.state / "operations").glob("*-take-*/operation.json")
    assert json.loads(record.read_text())["result"]["compared"] == report["compared"]
    shown = engine.ok("show", "latest:counter", "--json").json["summary"]["take"]["compared"]
    assert shown["pause_seconds"] == pause
    assert shown["durable_seconds"]["actual"] == pytest.approx(report["durable_seconds"], abs=5)
    assert re.search(r"pause .* predicted ", engine.ok("show", "latest:counter").out)
    # The next one knows better.
    again = engine.plan("counter")["predicted"]
    assert again["rates"]["source"] == "earlier takes of this job"
    assert again["rates"]["bytes_per_second"] == pytest.approx(
        report["pages"]["seen_bytes"] / report["store_seconds"], rel=0.2
    )
    assert 0 < again["stored_bytes"] <= again["stored_most_bytes"]


def test_a_pause_that_is_predicted_too_long(engine: Engine) -> None:
    """Refused by the prediction: nothing was stopped, nobody has waited."""
    engine.counter()
    done = engine.run("take", "counter", "--max-pause", "1ms", "--json")
    assert (done.code, done.json["code"]) == (3, "pause-too-long")
    assert "it was not stopped" in done.json["message"]
    assert engine.ok("list", "--json").json["snapshots"] == []
    engine.wait_lines("counter", 3)
    assert consecutive(engine.log("counter"))
    # With --stop no pause is too long.
    engine.take("counter", "--max-pause", "1ms", "--stop")


def huge_bytes(engine: Engine, name: str) -> int:
    return procfs.anonymous_huge_bytes(engine.root(name))


def test_collapse(engine: Engine) -> None:
    engine.job("loose", [sys.executable, "-u", "-c", LOOSE])
    engine.wait_lines("loose", 60)
    before = huge_bytes(engine, "loose")
    plan = engine.ok("take", "loose", "--plan", "--collapse", "--json").json
    would = plan["collapse"]
    assert would["collapsed_bytes"] == 0
    assert 60 * MIB <= would["candidate_bytes"] < 80 * MIB
    assert would["pause_seconds_after"] < would["pause_seconds_before"]
    assert huge_bytes(engine, "loose") == before
    os.kill(engine.root("loose"), signal.SIGUSR1)
    eventually("it allows huge pages", lambda: "-1" in engine.log("loose"))
    report = engine.take("loose", "--collapse")
    did = report["collapse"]
    assert did["stopped"] == ""
    assert did["collapsed_bytes"] >= would["candidate_bytes"] // 2  # khugepaged works beside us
    assert huge_bytes(engine, "loose") > before  # of those that the job has not written to since
    assert did["growth_bytes"] <= did["collapsed_bytes"] // 4
    assert did["pause_seconds_after"] < did["pause_seconds_before"]
    tables = [r["predicted"]["pause_parts_seconds"]["page_tables"] for r in (report, plan)]
    assert tables[0] < tables[1]
    assert report["predicted"]["huge_pages"] >= plan["predicted"]["huge_pages"] + 25
    engine.wait_lines("loose", 60)
    summary = engine.ok("show", "latest:loose", "--json").json["summary"]["take"]
    assert summary["collapse"] == did
    engine.stop("loose")
    counted = [line for line in engine.log("loose") if line != "-1"]
    assert consecutive(counted)
    begin = len(engine.log("loose"))
    engine.restore("latest:loose")
    restored = engine.wait_lines("loose", 120)[begin:]
    assert consecutive(restored)
    assert int(restored[0]) <= int(counted[-1]) + 1
    engine.assert_clean()


def test_a_job_that_forbids_huge_pages(engine: Engine, tmp_path: Path) -> None:
    """The kernel refuses; the take is made all the same, and says how often."""
    engine.job(
        "fast", [sys.executable, "-u", "-c", LOOSE.replace("made.madvise(mmap.MADV_HUGEPAGE)", "pass")]
    )
    engine.wait_lines("fast", 3)
    did = engine.take("fast", "--collapse")["collapse"]
    assert did["failed"]["EINVAL"] >= 30
    assert did["collapsed_bytes"] < did["candidate_bytes"]
    eventually("it goes on", lambda: engine.wait_lines("fast", 3), 20)
