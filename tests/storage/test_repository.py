from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from storage_doubles import (
    SMALL_CHUNKS,
    FaultyBackend,
    MemoryBackend,
    over,
    pages_of,
    pour,
    random_pages,
    store,
    take,
)

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage.commit import Commit, NodeManifest, SnapshotRef, is_snapshot_id
from cw_snapshot.storage.errors import (
    BadIdentityError,
    IndexDamagedError,
    IntegrityError,
    RepositoryExistsError,
    RepositoryNotFoundError,
    SnapshotAmbiguousError,
    SnapshotNotFoundError,
    UnsupportedUrlError,
)
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.urls import open_backend

NOON = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def commit(
    repository: Repository, job: str = "job", at: datetime = NOON, name: str | None = None
) -> SnapshotRef:
    nodes = [NodeManifest("node-0", "0" * 64, 1)]
    return repository.commit(job=job, incarnation=0, nodes=nodes, name=name, now=at).ref


# --- creating and opening ---------------------------------------------------------------------


def test_init_and_open_a_directory(tmp_path: Path) -> None:
    where = tmp_path / "repository"
    made = Repository.init(open_backend(where, create=True), chunker=SMALL_CHUNKS)
    for address in (where, str(where)):
        assert Repository.open(address).config == made.config
    assert made.config.conditional_writes
    assert [path.name for path in where.rglob("*") if path.is_file()] == ["config"]  # no probe is left


def test_init_refuses_an_existing_one(backend: MemoryBackend, repository: Repository) -> None:
    config = backend.objects["config"]
    with pytest.raises(RepositoryExistsError) as error:
        Repository.init(backend)
    assert error.value.exit_code == ExitCode.USAGE
    assert backend.objects["config"] == config


@pytest.mark.parametrize("name", ["packs/aa/x", "snapshots/job/x"])
def test_init_refuses_the_rest_of_one_whose_config_is_lost(backend: MemoryBackend, name: str) -> None:
    backend.put(name, b"")
    with pytest.raises(RepositoryExistsError, match=name):
        Repository.init(backend)


def test_init_against_another_init(backend: MemoryBackend) -> None:
    def other_was_faster(verb: str, name: str) -> None:
        if (verb, name) == ("put_if_absent", "config"):
            backend.put("config", b"theirs")

    with pytest.raises(RepositoryExistsError, match="a moment ago"):
        Repository.init(FaultyBackend(backend, before=other_was_faster))
    assert backend.objects["config"] == b"theirs"


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    class Careless(MemoryBackend):
        def put_if_absent(self, name: str, data: bytes) -> bool:  # type: ignore[override]
            self.put(name, data)
            return True

    repository = Repository.init(Careless())
    assert not repository.config.conditional_writes
    assert repository.find(commit(repository).snapshot)


def test_open_nothing(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RepositoryNotFoundError) as error:
            Repository.open(where)
        assert error.value.exit_code == ExitCode.NOT_FOUND
        assert str(where) in error.value.message


def test_open_with_a_damaged_config(repository: Repository, backend: MemoryBackend) -> None:
    for at in range(len(backend.objects["config"])):
        backend.flip("config", at, at % 8)
        with pytest.raises(IntegrityError, match="config") as error:
            Repository.open(backend)
        assert error.value.exit_code == ExitCode.INTEGRITY
        backend.flip("config", at, at % 8)
    assert Repository.open(backend).config == repository.config


@pytest.mark.parametrize(
    ("url", "why"), [("s3://bucket/prefix", "not supported yet"), ("ftp://x", "not known"), ("", "no path")]
)
def test_addresses_that_are_not_supported(url: str, why: str) -> None:
    with pytest.raises(UnsupportedUrlError, match=why) as error:
        Repository.open(url)
    assert error.value.exit_code == ExitCode.USAGE


def test_no_secret_of_an_address_is_repeated() -> None:
    with pytest.raises(UnsupportedUrlError) as error:
        open_backend("s3://bucket/x?secret=hunter2")
    assert "hunter2" not in str(error.value)


# --- snapshots --------------------------------------------------------------------------------


def test_commit_and_read_back(repository: Repository) -> None:
    made = repository.commit(
        job="job-1",
        incarnation=3,
        nodes=[NodeManifest("node-0", "0" * 64, 1), NodeManifest("node-1", "1" * 64, 2)],
        indexes=["2" * 64],
        name="best",
        summary={"pause_ms": 20},
    )
    assert is_snapshot_id(made.snapshot)
    assert abs(datetime.now(UTC) - made.created) < timedelta(minutes=1)
    read = Repository.open(repository.backend).read_commit(made.ref)
    assert read == made
    assert isinstance(read, Commit)


@pytest.mark.parametrize("field", ["job", "name"])
def test_identities_are_checked_at_the_edge(
    repository: Repository, backend: MemoryBackend, field: str
) -> None:
    fields = {"job": "job", "name": None} | {field: "../x"}
    with pytest.raises(BadIdentityError):
        repository.commit(incarnation=0, nodes=[], **fields)
    assert backend.names("snapshots/") == []
    with pytest.raises(BadIdentityError):
        repository.list_snapshots("a/b")
    with pytest.raises(BadIdentityError):
        repository.find("latest:a/b")


def test_an_id_that_is_taken_is_not_used_again(
    repository: Repository, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["20261130T120000Z-00000000", "20261130T120000Z-00000000", "20261130T120000Z-00000001"])
    monkeypatch.setattr("cw_snapshot.storage.repository.new_snapshot_id", lambda now: next(ids))
    first = commit(repository)
    before = backend.objects[first.name]
    assert commit(repository).snapshot == "20261130T120000Z-00000001"
    assert backend.objects[first.name] == before


def test_list(repository: Repository, backend: MemoryBackend) -> None:
    assert repository.list_snapshots() == []
    b = commit(repository, "b")
    later = commit(repository, "a", NOON + timedelta(days=1))
    earlier = commit(repository, "a", NOON - timedelta(days=1))
    backend.put("snapshots/a/no-id", b"")
    backend.put("snapshots/stray", b"")
    backend.put("snapshots/a/deeper/20261130T120000Z-00000000", b"")
    assert repository.list_snapshots() == [earlier, later, b]
    assert repository.list_snapshots("a") == [earlier, later]
    assert repository.list_snapshots("c") == []


def test_find(repository: Repository) -> None:
    one = commit(repository, "a", NOON, name="best")
    two = commit(repository, "a", NOON + timedelta(seconds=1))
    three = commit(repository, "b", NOON + timedelta(days=40), name="2026")
    assert repository.find(one.snapshot) == one
    assert repository.find("best") == one
    assert repository.find("latest:a") == two
    assert repository.find("latest:b") == three
    assert repository.find(two.snapshot[:-1]) == two
    assert repository.find("20270109") == three
    assert repository.find("2026") == three, "a whole name wins over the beginning of ids"


def test_find_what_is_not_there(repository: Repository) -> None:
    commit(repository)
    for token in ("", "nothing", "latest:other", "20270101T000000Z-00000000", "latest", "../config", "*"):
        with pytest.raises(SnapshotNotFoundError) as error:
            repository.find(token)
        assert error.value.exit_code == ExitCode.NOT_FOUND


def test_find_what_is_ambiguous(repository: Repository) -> None:
    refs = [commit(repository, job, NOON, name="same") for job in ("a", "b")]
    for token in ("202611", "same"):
        with pytest.raises(SnapshotAmbiguousError) as error:
            repository.find(token)
        assert error.value.exit_code == ExitCode.USAGE
        assert error.value.evidence == [f"{ref.job}/{ref.snapshot}" for ref in sorted(refs)]


def test_latest_within_one_second(repository: Repository) -> None:
    """Ids have whole seconds and a random end; the commit knows better."""
    refs = [commit(repository, at=NOON + timedelta(microseconds=n)) for n in range(8)]
    assert repository.find("latest:job") == refs[-1]


def test_a_damaged_commit_does_not_hide_the_others(repository: Repository, backend: MemoryBackend) -> None:
    bad = commit(repository, name="bad")
    good = commit(repository, name="good")
    backend.flip(bad.name, 40)
    assert repository.find("good") == good
    assert repository.find(bad.snapshot) == bad
    assert set(repository.list_snapshots()) == {bad, good}


def test_delete(repository: Repository, backend: MemoryBackend) -> None:
    made = take(repository, {"mem": [(0, random_pages(20))]})
    packs = backend.names("packs/")
    repository.delete_snapshot(made.ref)
    assert repository.list_snapshots() == []
    assert backend.names("packs/") == packs, "chunks stay until a prune"
    for gone in (repository.delete_snapshot, repository.read_commit):
        with pytest.raises(SnapshotNotFoundError):
            gone(made.ref)


# --- the index --------------------------------------------------------------------------------


def test_load_index_joins_all(repository: Repository, backend: MemoryBackend) -> None:
    store(repository, {"a": [(0, random_pages(20, 1))]})
    store(repository, {"b": [(0, random_pages(20, 2))]})
    assert len(backend.names("index/")) == 2
    index = repository.load_index()
    assert set(index.packs) == set(repository.list_packs())
    assert index.pack_sizes == tuple(repository.list_packs()[digest] for digest in index.packs)


def test_load_index_skips_what_is_damaged_only_if_told(
    repository: Repository, backend: MemoryBackend
) -> None:
    store(repository, {"a": [(0, random_pages(20, 1))]})
    bad = backend.only("index/")
    store(repository, {"b": [(0, random_pages(20, 2))]})
    backend.flip(bad, 100)
    with pytest.raises(IndexDamagedError, match=bad):
        repository.load_index()
    seen: list[Exception] = []
    index = repository.load_index(on_damage=seen.append)
    assert len(index) > 0
    assert [type(error) for error in seen] == [IndexDamagedError]


def test_a_lost_pack_is_stored_again_by_the_next_take(repository: Repository, backend: MemoryBackend) -> None:
    """Otherwise every later snapshot would rely on chunks that are gone."""
    streams = {"a": [(0, random_pages(200))]}
    ref = store(repository, streams)
    packs = backend.names("packs/")
    assert len(packs) > 2
    backend.delete(packs[0])
    backend.put(packs[1], backend.objects[packs[1]][:-1])
    with pytest.raises(IntegrityError):
        pour(repository, ref)
    again = store(repository, streams)
    assert pour(repository, again)["a"].pages == pages_of(streams["a"])
    assert pour(repository, ref)["a"].pages == pages_of(streams["a"]), "the old one is whole again, too"


def test_a_store_that_fails_while_committing_leaves_no_snapshot(repository: Repository) -> None:
    def fail(verb: str, name: str) -> None:
        raise OSError(f"{verb} {name}")

    with pytest.raises(OSError, match="put_if_absent snapshots/"):
        commit(over(repository, FaultyBackend(repository.backend, before=fail)))
    assert repository.list_snapshots() == []
