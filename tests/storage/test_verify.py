"""Verification finds every kind of damage, names the object, and finds all of it in one run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from storage_doubles import (
    FaultyBackend,
    MemoryBackend,
    over,
    random_pages,
    take,
    text_pages,
)

from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.storage.commit import Commit, NodeManifest
from cw_snapshot.storage.errors import (
    ChunkDamagedError,
    ChunkMissingError,
    CommitDamagedError,
    IndexDamagedError,
    ManifestDamagedError,
    ObjectMissingError,
    PackDamagedError,
    SnapshotNotFoundError,
    StoreUnreachableError,
)
from cw_snapshot.storage.index import encode_index
from cw_snapshot.storage.layout import content_digest, manifest_name
from cw_snapshot.storage.packs import HEADER_SIZE
from cw_snapshot.storage.plan import ReadLimits
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.verify import VerifyResult, verify_snapshot

STREAMS = {
    "one": [(0, random_pages(150, 1) + bytes(5 << 12))],
    "two": [(1 << 30, text_pages(150, 2) + random_pages(20, 1))],
}


@pytest.fixture
def made(repository: Repository) -> Commit:
    take(repository, {"other": [(0, random_pages(60, 7))]}, job="other")  # must not matter
    return take(repository, STREAMS)


def verify(repository: Repository, made: Commit, **options: float) -> VerifyResult:
    return verify_snapshot(repository, made.ref, threads=2, **options)  # type: ignore[arg-type]


def own_packs(backend: MemoryBackend, repository: Repository, made: Commit) -> list[str]:
    return [f"packs/{pack.digest[:2]}/{pack.digest}" for pack in repository.read_index(made.indexes[0])]


def test_a_sound_snapshot(repository: Repository, backend: MemoryBackend, made: Commit) -> None:
    result = verify(repository, made)
    assert result.ok
    assert result.problems == ()
    assert (result.manifests, result.packs) == (1, len(own_packs(backend, repository, made)))
    assert result.chunks == result.chunks_read > 20
    assert 300 * 4096 <= result.bytes_read < 320 * 4096  # the shared pages may be cut twice


def test_every_flipped_bit_in_a_pack_is_found(
    repository: Repository, backend: MemoryBackend, made: Commit
) -> None:
    """Header, every frame, footer and trailer (but for the bytes reserved for flags)."""
    for name in own_packs(backend, repository, made):
        size = len(backend.objects[name])
        for at in [0, 9, *range(HEADER_SIZE, size - 60, 997), size - 100, size - 50, size - 20, size - 1]:
            backend.flip(name, at, at % 8)
            result = verify(repository, made)
            assert len(result.problems) == 1, at
            assert name in result.problems[0].message
            assert result.problems[0].exit_code == ExitCode.INTEGRITY
            backend.flip(name, at, at % 8)
    assert verify(repository, made).ok


def test_all_damaged_chunks_are_listed(repository: Repository, backend: MemoryBackend, made: Commit) -> None:
    name = own_packs(backend, repository, made)[0]
    for at in (HEADER_SIZE, len(backend.objects[name]) // 2):
        backend.flip(name, at)
    result = verify(repository, made)
    assert [type(problem) for problem in result.problems] == [ChunkDamagedError] * 2
    assert result.chunks_read == result.chunks - 2


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_lost_packs(repository: Repository, backend: MemoryBackend, made: Commit, share: float) -> None:
    """Found without reading a chunk, all of them."""
    packs = own_packs(backend, repository, made)
    assert len(packs) >= 3
    backend.delete(packs[0])
    backend.put(packs[1], backend.objects[packs[1]][:-100])
    result = verify(repository, made, share=share)
    assert {type(problem) for problem in result.problems} == {ObjectMissingError, PackDamagedError}
    messages = " ".join(problem.message for problem in result.problems)
    assert packs[0] in messages
    assert packs[1] in messages
    assert packs[2] not in messages
    assert (result.chunks_read > 0) == (share > 0), "what is there is read all the same"


def test_damaged_manifest(repository: Repository, backend: MemoryBackend, made: Commit) -> None:
    name = manifest_name(made.nodes[0].digest)
    backend.flip(name, 50)
    result = verify(repository, made)
    assert [type(problem) for problem in result.problems] == [ManifestDamagedError]
    assert name in result.problems[0].message
    assert result.manifests == 0


def test_missing_manifest_among_others(repository: Repository, made: Commit) -> None:
    nodes = [NodeManifest("gone", "0" * 64, 100), made.nodes[0]]
    both = repository.commit(job="job", incarnation=0, nodes=nodes, indexes=made.indexes)
    result = verify(repository, both)
    assert [type(problem) for problem in result.problems] == [ObjectMissingError]
    assert result.manifests == 1
    assert result.chunks_read > 0


def test_damaged_index(repository: Repository, backend: MemoryBackend, made: Commit) -> None:
    name = f"index/{made.indexes[0]}"
    backend.flip(name, 200)
    result = verify(repository, made)
    assert [type(problem) for problem in result.problems] == [ChunkMissingError, IndexDamagedError]
    assert name in result.problems[1].message


def test_an_index_that_says_something_else_than_the_packs(
    repository: Repository, backend: MemoryBackend, made: Commit
) -> None:
    """A well-formed index with two chunks exchanged: found without reading a chunk."""
    packs = repository.read_index(made.indexes[0])
    entries = packs[0].entries.copy()
    entries["id"][[0, 1]] = entries["id"][[1, 0]]
    data = encode_index([replace(packs[0], entries=entries), *packs[1:]], repository.config.repository_id)
    backend.delete(f"index/{made.indexes[0]}")
    backend.put(f"index/{content_digest(data)}", data)
    result = verify(repository, made, share=0.0)
    # If the two are of different length, the manifest contradicts the index as well.
    assert [p.message for p in result.problems if isinstance(p, PackDamagedError) and "footer" in p.message]


def test_damaged_commit(repository: Repository, backend: MemoryBackend, made: Commit) -> None:
    backend.flip(made.ref.name, 30)
    result = verify(repository, made)
    assert [type(problem) for problem in result.problems] == [CommitDamagedError]
    assert made.ref.name in result.problems[0].message


def test_no_such_snapshot(repository: Repository, made: Commit) -> None:
    repository.delete_snapshot(made.ref)
    with pytest.raises(SnapshotNotFoundError):
        verify(repository, made)


def test_a_part(repository: Repository, made: Commit) -> None:
    whole = verify(repository, made)
    none = verify(repository, made, share=0.0)
    assert none.ok
    assert (none.chunks, none.chunks_read, none.bytes_read) == (whole.chunks, 0, 0)
    part = verify(repository, made, share=0.25)
    assert part.chunks_read == -(-whole.chunks // 4)
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError):
            verify(repository, made, share=share)


def test_parts_of_other_seeds_find_a_damaged_chunk(
    repository: Repository, backend: MemoryBackend, made: Commit
) -> None:
    backend.flip(own_packs(backend, repository, made)[0], HEADER_SIZE)
    found = [seed for seed in range(30) if not verify(repository, made, share=0.25, seed=seed).ok]
    again = [seed for seed in range(30) if not verify(repository, made, share=0.25, seed=seed).ok]
    assert 1 <= len(found) < 25
    assert found == again


def test_progress(repository: Repository, made: Commit) -> None:
    seen: list[tuple[int, int]] = []
    verify_snapshot(
        repository,
        made.ref,
        threads=2,
        progress=lambda *a: seen.append(a),
        limits=ReadLimits(longest=64 << 10),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (verify(repository, made).bytes_read,) * 2


def test_a_store_that_does_not_answer_is_no_problem_of_the_snapshot(
    repository: Repository, backend: MemoryBackend, made: Commit
) -> None:
    def fail(verb: str, name: str) -> None:
        if verb == "get_range" and name.startswith("packs/"):
            raise StoreUnreachableError(store="memory", what="it went away")

    with pytest.raises(StoreUnreachableError):
        verify(over(repository, FaultyBackend(backend, before=fail)), made)


def test_a_pack_that_vanishes_during_verification(
    repository: Repository, backend: MemoryBackend, made: Commit
) -> None:
    name = own_packs(backend, repository, made)[0]

    def vanish(verb: str, asked: str) -> None:
        if verb == "get_range" and asked == name:
            backend.delete(name)

    result = verify(over(repository, FaultyBackend(backend, before=vanish)), made)
    assert not result.ok
    assert all(name in problem.message for problem in result.problems)
