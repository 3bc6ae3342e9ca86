from __future__ import annotations

import pytest
from storage_doubles import (
    FaultyBackend,
    MemoryBackend,
    manifest_of,
    over,
    pages_of,
    pour,
    random_pages,
    take,
    text_pages,
)

from cw_snapshot.storage.errors import PackDamagedError
from cw_snapshot.storage.rebuild import rebuild_index
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.verify import verify_snapshot

ONE = {"mem": [(0, random_pages(150, 1))]}
TWO = {"mem": [(0, random_pages(100, 1) + text_pages(100, 2))]}


def test_nothing_to_do(repository: Repository, backend: MemoryBackend) -> None:
    take(repository, ONE)
    before = dict(backend.objects)
    result = rebuild_index(repository)
    assert (result.index, result.packs, result.removed, result.problems) == (None, 0, (), ())
    assert backend.objects == before


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_indexes_come_back_from_the_packs(repository: Repository, backend: MemoryBackend, how: str) -> None:
    snapshots = [take(repository, ONE), take(repository, TWO)]
    chunks = len(repository.load_index())
    indexes = backend.names("index/")
    assert len(indexes) == 2
    for name in indexes:
        backend.delete(name) if how == "lost" else backend.flip(name, 77)
    assert not verify_snapshot(repository, snapshots[0].ref, threads=1).ok
    result = rebuild_index(repository)
    assert result.packs == len(backend.names("packs/"))
    assert result.problems == ()
    assert len(result.removed) == (0 if how == "lost" else 2)
    assert backend.names("index/") == [f"index/{result.index}"]
    assert len(repository.load_index()) == chunks
    for snapshot, streams in zip(snapshots, (ONE, TWO), strict=True):
        assert verify_snapshot(repository, snapshot.ref, threads=1).ok
        assert pour(repository, manifest_of(snapshot))["mem"].pages == pages_of(streams["mem"])


def test_sound_indexes_stay_and_a_damaged_one_heals_in_place(
    repository: Repository, backend: MemoryBackend
) -> None:
    """The same packs give the same object, so the commits' lists of indexes stay right."""
    take(repository, ONE)
    take(repository, TWO)
    before = dict(backend.objects)
    bad = backend.names("index/")[0]
    backend.flip(bad, 77)
    result = rebuild_index(repository)
    assert result.removed == ()
    assert f"index/{result.index}" == bad
    assert backend.objects == before


def test_packs_of_a_take_that_was_killed_are_indexed(repository: Repository, backend: MemoryBackend) -> None:
    """Their chunks need not be stored again."""
    take(repository, ONE)
    for name in [*backend.names("index/"), *backend.names("manifests/"), *backend.names("snapshots/")]:
        backend.delete(name)
    rebuild_index(repository)
    packs = backend.names("packs/")
    again = take(repository, ONE)
    assert backend.names("packs/") == packs
    assert again.indexes == ()
    assert verify_snapshot(repository, again.ref, threads=1).ok


def test_a_pack_that_can_not_be_read_does_not_stop_it(repository: Repository, backend: MemoryBackend) -> None:
    take(repository, ONE)
    bad, *others = backend.names("packs/")
    backend.delete(backend.only("index/"))
    backend.put(bad, backend.objects[bad][:-1])
    result = rebuild_index(repository)
    assert result.packs == len(others) > 0
    assert [type(problem) for problem in result.problems] == [PackDamagedError]
    assert bad in result.problems[0].message


def test_damaged_indexes_are_deleted_last(repository: Repository, backend: MemoryBackend) -> None:
    """Killed at any instant, a second run gets to the same end."""
    take(repository, ONE)
    take(repository, TWO)
    for bad in backend.names("index/"):
        backend.flip(bad, 77)
    order: list[str] = []
    noted = FaultyBackend(backend, before=lambda verb, name: order.append(verb))
    rebuild_index(over(repository, noted))
    assert [verb for verb in order if verb in ("put", "delete")] == ["put", "delete", "delete"]
