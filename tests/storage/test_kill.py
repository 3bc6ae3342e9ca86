"""kill -9 of a writer at any instant: the repository opens, and what is listed is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from storage_doubles import (
    SMALL_CHUNKS,
    FaultyBackend,
    MemoryBackend,
    manifest_of,
    over,
    pages_of,
    pour,
    random_pages,
    store,
    take,
)

from cw_snapshot.storage.commit import is_snapshot_id
from cw_snapshot.storage.rebuild import rebuild_index
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.urls import open_backend
from cw_snapshot.storage.verify import verify_snapshot

CHILD = Path(__file__).with_name("storage_kill_child.py")
KILLS, MOST_KILLS = 15, 150
"""So many, and more until one was in the middle of a snapshot."""


def killed_writer(where: Path, seed: int, moment: float) -> set[str]:
    """Run the child and kill it some time after its first snapshot; the snapshots that it said exist.

    :param moment: when, as a multiple of the time that the first snapshot took.
    """
    child = subprocess.Popen([sys.executable, CHILD, where, str(seed)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    begin = time.monotonic()
    told = child.stdout.readline()
    time.sleep(moment * (time.monotonic() - begin))
    os.kill(child.pid, signal.SIGKILL)
    told += child.stdout.read()
    child.wait()
    child.stdout.close()
    return {line for line in told.splitlines() if is_snapshot_id(line)}


def test_a_killed_writer_leaves_only_whole_snapshots(tmp_path: Path) -> None:
    where = tmp_path / "repository"
    repository = Repository.init(open_backend(where, create=True), chunker=SMALL_CHUNKS)
    first = take(repository, {"mem": [(0, random_pages(120, 1))]}, job="first")
    expected = {first.snapshot}
    halves = 0
    for seed, moment in enumerate(np.random.default_rng(0).uniform(0, 2.5, MOST_KILLS)):
        if seed >= KILLS and halves:
            break
        told = killed_writer(where, seed, float(moment))
        assert told
        repository = Repository.open(where)
        listed = {ref.snapshot for ref in repository.list_snapshots()}
        assert listed >= expected | told, "what was said to exist exists"
        assert len(listed - expected - told) <= 1, "one may have been committed and not been told"
        expected = listed
        halves += len(repository.list_packs()) > len(repository.load_index().packs)
        halves += any((where / ".tmp").iterdir())
    for ref in repository.list_snapshots():
        result = verify_snapshot(repository, ref, threads=2)
        assert result.ok, result.problems
    assert halves, "at least one was killed in the middle of a snapshot"

    # The rest goes on as if nothing had been: with what was left behind, or without.
    rebuild_index(repository)
    stream = [(0, random_pages(100, 1) + random_pages(60, 0))]
    assert pour(repository, store(repository, {"mem": stream}))["mem"].pages == pages_of(stream)


class Dead(BaseException):
    """The process is gone: nothing it would do afterwards happens."""


@pytest.mark.parametrize("last", range(9))
def test_dead_after_any_write(repository: Repository, backend: MemoryBackend, last: int) -> None:
    """After each of a take's writes, without luck: what is listed is whole, and the next take works."""
    stream = {"mem": [(0, random_pages(200, 1))]}
    first = take(repository, {"mem": [(0, random_pages(50, 2))]})
    lock, writes = threading.Lock(), [0]

    def die(verb: str, name: str) -> None:
        with lock:
            if "put" in verb or verb == "delete":
                writes[0] += 1
            if writes[0] > last:
                raise Dead

    try:
        made = [take(over(repository, FaultyBackend(backend, before=die)), stream)]
    except Dead:
        made = []
    assert bool(made) == (last >= 7), "four packs, index, manifest, commit"
    assert repository.list_snapshots() == sorted(commit.ref for commit in [first, *made])
    again = take(Repository.open(backend), stream)
    for commit in (first, *made, again):
        assert verify_snapshot(repository, commit.ref, threads=1).ok
    assert pour(repository, manifest_of(again))["mem"].pages == pages_of(stream["mem"])
