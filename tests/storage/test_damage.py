"""Any damage to any object: what comes out is right, or an IntegrityError that names an object."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from storage_doubles import (
    SMALL_CHUNKS,
    MemoryBackend,
    PageRecorder,
    manifest_of,
    pages_of,
    random_pages,
    take,
    text_pages,
)
from storage_strategies import damaged

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage.errors import IntegrityError, RepositoryNotFoundError, SnapshotNotFoundError
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.verify import verify_snapshot

STREAMS = {
    "rank-0": [(0, random_pages(60, 1) + bytes(3 * 4096) + text_pages(60, 2))],
    "rank-1": [(1 << 40, text_pages(30, 3) + random_pages(60, 1))],
}


@cache
def sound() -> tuple[dict[str, bytes], str]:
    """All objects of a repository with one snapshot, and the snapshot's id."""
    backend = MemoryBackend()
    made = take(Repository.init(backend, chunker=SMALL_CHUNKS), STREAMS)
    return dict(backend.objects), made.snapshot


def restored(backend: MemoryBackend, snapshot: str) -> dict[str, PageRecorder]:
    """What a restore does: open, find, read the commit, pour."""
    repository = Repository.open(backend)
    commit = repository.read_commit(repository.find(snapshot))
    tree = TreeReader(repository, manifest_of(commit))
    sinks = {name: PageRecorder() for name in tree.streams}
    try:
        tree.pour(sinks, threads=1)
    finally:
        for name, sink in sinks.items():
            assert sink.pages.items() <= pages_of(STREAMS[name]).items(), "a wrong page was delivered"
    return sinks


@settings(max_examples=150)
@given(st.data())
def test_any_damage_to_any_object(data: st.DataObject) -> None:
    objects, snapshot = sound()
    backend = MemoryBackend()
    backend.objects = dict(objects)
    name = data.draw(st.sampled_from(sorted(objects)))
    if data.draw(st.integers(0, 9)):
        backend.objects[name] = data.draw(damaged(objects[name]))
    else:
        backend.delete(name)
    try:
        sinks = restored(backend, snapshot)
    except IntegrityError as error:
        assert error.exit_code == ExitCode.INTEGRITY
        assert any(part in str(error) for part in (*objects, "of the repository"))
        return
    except (RepositoryNotFoundError, SnapshotNotFoundError):
        assert name not in backend.objects, "the config or the commit is gone"
        return
    assert {name: sink.pages for name, sink in sinks.items()} == {
        name: pages_of(stream) for name, stream in STREAMS.items()
    }


@settings(max_examples=60)
@given(st.data())
def test_verification_finds_what_a_restore_would(data: st.DataObject) -> None:
    objects, snapshot = sound()
    backend = MemoryBackend()
    backend.objects = dict(objects)
    name = data.draw(st.sampled_from(sorted(set(objects) - {"config"})))
    backend.objects[name] = data.draw(damaged(objects[name]))
    repository = Repository.open(backend)
    found = verify_snapshot(repository, repository.find(snapshot), threads=1)
    try:
        restored(backend, snapshot)
    except IntegrityError:
        assert not found.ok
