"""Pouring: every page once, verified, and nothing that can't be trusted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import (
    SMALL_CHUNKS,
    FaultyBackend,
    MemoryBackend,
    PageRecorder,
    Pieces,
    PieceSource,
    extents,
    over,
    pages_of,
    random_pages,
    store,
    text_pages,
    writer,
)
from storage_strategies import pieces

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage import layout, reader
from cw_snapshot.storage.codec import Decompressor
from cw_snapshot.storage.errors import (
    ChunkDamagedError,
    ChunkMissingError,
    ForeignObjectError,
    ManifestDamagedError,
    ObjectMissingError,
    PackDamagedError,
    StoreUnreachableError,
    StreamMissingError,
)
from cw_snapshot.storage.manifest import Manifest, ManifestRef, Stream, encode_manifest
from cw_snapshot.storage.memory import BytesSource
from cw_snapshot.storage.pages import PAGE_SIZE, Bytes
from cw_snapshot.storage.plan import ReadLimits
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository

STREAM = [(0x1000000, random_pages(150, 1) + bytes(9 * PAGE_SIZE) + text_pages(150, 2))]


@given(pieces(), st.integers(1, 200), st.integers(0, 20), st.integers(1, 3))
def test_any_read_limits(stream: list[tuple[int, bytes]], longest: int, gap: int, threads: int) -> None:
    repository = Repository.init(MemoryBackend(), chunker=SMALL_CHUNKS)
    tree = TreeReader(repository, store(repository, {"mem": stream}))
    sink = PageRecorder()
    tree.pour({"mem": sink}, threads=threads, limits=ReadLimits(longest * 1024, gap * 1024))
    assert sink.pages == pages_of(stream)


def test_a_shared_chunk_is_read_and_decompressed_once(
    repository: Repository, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {f"rank-{n}": [(n << 40, text_pages(100, 3))] for n in range(4)}
    ref = store(repository, streams)
    reads: list[tuple[str, str]] = []
    decompressed: list[int] = []
    real = Decompressor.decompress
    monkeypatch.setattr(
        Decompressor, "decompress", lambda self, *a: (decompressed.append(1), real(self, *a))[1]
    )
    counting = FaultyBackend(backend, before=lambda *call: reads.append(call))
    tree = TreeReader(over(repository, counting), ref)
    sinks = {name: PageRecorder() for name in streams}
    tree.pour(sinks, threads=2)
    for name, sink in sinks.items():
        assert sink.pages == pages_of(streams[name])
    assert len(decompressed) == len(tree._manifest.chunks)
    packs = Counter(name for verb, name in reads if verb == "get_range" and name.startswith("packs/"))
    assert max(packs.values()) == 1, "neighbours are read together"


def test_only_the_streams_asked_for(repository: Repository, backend: MemoryBackend) -> None:
    streams = {"one": [(0, random_pages(90, 1))], "two": [(0, random_pages(90, 2))]}
    ref = store(repository, streams)
    reads: list[tuple[str, str]] = []
    counting = FaultyBackend(backend, before=lambda *call: reads.append(call))
    sink = PageRecorder()
    TreeReader(over(repository, counting), ref).pour({"two": sink}, threads=1)
    assert sink.pages == pages_of(streams["two"])
    packs = {name for verb, name in reads if verb == "get_range" and name.startswith("packs/")}
    assert len(packs) < len(backend.names("packs/"))


def test_progress(repository: Repository) -> None:
    seen: list[tuple[int, int]] = []
    tree = TreeReader(repository, store(repository, {"mem": STREAM}))
    limits = ReadLimits(longest=64 << 10)
    tree.pour({"mem": PageRecorder()}, threads=2, progress=lambda *a: seen.append(a), limits=limits)
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (309 * PAGE_SIZE, 309 * PAGE_SIZE)


def test_workers_are_initialised(repository: Repository) -> None:
    names: list[str] = []
    tree = TreeReader(repository, store(repository, {"mem": STREAM}))
    tree.pour(
        {"mem": PageRecorder()},
        threads=3,
        worker_init=lambda: names.append(threading.current_thread().name),
    )
    assert sorted(names) == ["cw-pour-0", "cw-pour-1", "cw-pour-2"]


def test_zeros_are_not_read(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {"mem": [(0, bytes(1000 * PAGE_SIZE))]})
    assert backend.names("packs/") == []
    sink = PageRecorder()
    TreeReader(repository, ref).pour({"mem": sink}, threads=1)
    assert sink.zeros == set(range(0, 1000 * PAGE_SIZE, PAGE_SIZE))


# --- what is asked wrongly --------------------------------------------------------------------


def test_unknown_streams(repository: Repository) -> None:
    tree = TreeReader(repository, store(repository, {"mem": STREAM}))
    for call in (
        lambda: tree.read_file("other"),
        lambda: tree.pour({"other": PageRecorder()}, threads=1),
        lambda: tree.read_file("mem"),  # memory has no size
    ):
        with pytest.raises(StreamMissingError) as error:
            call()
        assert error.value.exit_code == ExitCode.INTEGRITY


def test_a_file_that_is_too_large_is_not_allocated(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_FILE_SIZE", 4999)
    with writer(repository) as tree:
        tree.add_stream("file", BytesSource(b"x" * 5000), "meta", size=5000)
        ref = tree.finish({})
    with pytest.raises(ManifestDamagedError, match="too large"):
        TreeReader(repository, ref).read_file("file")


# --- what can't be trusted --------------------------------------------------------------------


def test_a_damaged_chunk_is_never_delivered(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {"mem": STREAM})
    for name in backend.names("packs/"):
        for at in (16, 20, 40_000):
            backend.flip(name, at)
            sink = PageRecorder()
            with pytest.raises(ChunkDamagedError) as error:
                TreeReader(repository, ref).pour({"mem": sink}, threads=2)
            assert error.value.exit_code == ExitCode.INTEGRITY
            assert name in error.value.message
            assert error.value.fields["chunk"] in error.value.message
            assert sink.pages.items() <= pages_of(STREAM).items()
            backend.flip(name, at)
    sink = PageRecorder()
    TreeReader(repository, ref).pour({"mem": sink}, threads=2)
    assert sink.pages == pages_of(STREAM)


@pytest.mark.parametrize("how", ["gone", "truncated", "grown"])
def test_lost_packs_are_named_before_the_first_page(
    repository: Repository, backend: MemoryBackend, how: str
) -> None:
    ref = store(repository, {"mem": STREAM})
    name = backend.names("packs/")[-1]
    if how == "gone":
        backend.delete(name)
    else:
        data = backend.objects[name]
        backend.put(name, data[:-1] if how == "truncated" else data + b"x")
    kind = ObjectMissingError if how == "gone" else PackDamagedError
    with pytest.raises(kind, match=name):
        TreeReader(repository, ref).check()
    sink = PageRecorder()
    with pytest.raises(kind, match=name) as error:
        TreeReader(repository, ref).pour({"mem": sink}, threads=2)
    assert error.value.exit_code == ExitCode.INTEGRITY
    assert sink.pages == {}


def test_a_pack_that_vanishes_while_it_is_read(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {"mem": STREAM})

    def vanish(verb: str, name: str) -> None:
        if verb == "get_range" and name.startswith("packs/"):
            backend.delete(name)

    tree = TreeReader(over(repository, FaultyBackend(backend, before=vanish)), ref)
    with pytest.raises(ObjectMissingError, match="packs/"):
        tree.pour({"mem": PageRecorder()}, threads=2)


def test_chunks_in_no_index(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {"mem": STREAM})
    backend.delete(backend.only("index/"))
    sink = PageRecorder()
    with pytest.raises(ChunkMissingError, match=layout.manifest_name(ref.digest)) as error:
        TreeReader(repository, ref).pour({"mem": sink}, threads=2)
    assert error.value.exit_code == ExitCode.INTEGRITY
    assert sink.pages == {}


def test_a_manifest_is_compared_with_its_hash_and_size(
    repository: Repository, backend: MemoryBackend
) -> None:
    ref = store(repository, {"mem": STREAM})
    name = layout.manifest_name(ref.digest)
    for at in range(len(backend.objects[name])):
        backend.flip(name, at, at % 8)
        with pytest.raises(ManifestDamagedError, match=name):
            TreeReader(repository, ref)
        backend.flip(name, at, at % 8)
    with pytest.raises(ManifestDamagedError, match="bytes instead of"):
        TreeReader(repository, ManifestRef(ref.digest, ref.size + 1))
    backend.delete(name)
    with pytest.raises(ObjectMissingError, match=name):
        TreeReader(repository, ref)


def test_a_manifest_that_contradicts_the_packs(repository: Repository, backend: MemoryBackend) -> None:
    """Even with a right hash: a chunk of other length would be written beyond its extent."""
    good = TreeReader(repository, store(repository, {"mem": [(0, text_pages(2))]}))
    extent = good.streams["mem"].extents[0]
    bad = Manifest(
        {},
        {"mem": Stream("mem", None, extents((0, int(extent["pages"]) + 1, 0)))},
        good._manifest.chunks,
    )
    data = encode_manifest(bad, repository.config.repository_id)
    digest = layout.content_digest(data)
    backend.put(layout.manifest_name(digest), data)
    sink = PageRecorder()
    with pytest.raises(ManifestDamagedError, match="another length"):
        TreeReader(repository, ManifestRef(digest, len(data))).pour({"mem": sink}, threads=1)
    assert sink.pages == {}


def copied_from_another(backend: MemoryBackend) -> ManifestRef:
    """Every object of another repository but its config, and the reference of a manifest among them."""
    other = MemoryBackend()
    ref = store(Repository.init(other, chunker=SMALL_CHUNKS), {"mem": STREAM})
    backend.objects.update((name, data) for name, data in other.objects.items() if name != "config")
    return ref


def test_a_foreign_manifest(repository: Repository, backend: MemoryBackend) -> None:
    ref = copied_from_another(backend)
    with pytest.raises(ForeignObjectError, match=layout.manifest_name(ref.digest)) as error:
        TreeReader(repository, ref)
    assert error.value.exit_code == ExitCode.INTEGRITY
    with pytest.raises(ForeignObjectError, match="index/"):
        repository.load_index()


def test_a_wrong_key(repository: Repository) -> None:
    """The key is part of every chunk's id: with another one nothing is accepted."""
    ref = store(repository, {"mem": STREAM})
    wrong = Repository(repository.backend, replace(repository.config, key=b"w" * 32))
    sink = PageRecorder()
    with pytest.raises(ChunkDamagedError, match="packs/") as error:
        TreeReader(wrong, ref).pour({"mem": sink}, threads=2)
    assert error.value.exit_code == ExitCode.INTEGRITY
    assert sink.pages.keys() == sink.zeros, "no page of a chunk was delivered"


# --- who fails --------------------------------------------------------------------------------


class Refused(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("verb", ["write", "zero"])
def test_a_sink_that_fails_stops_the_pour(repository: Repository, verb: str) -> None:
    class Failing(PageRecorder):
        def write(self, start: int, parts: Sequence[Bytes]) -> None:
            if verb == "write" and len(self.pages) > 100:
                raise Refused(verb)
            super().write(start, parts)

        def zero(self, start: int, nbytes: int) -> None:
            if verb == "zero":
                raise Refused(verb)
            super().zero(start, nbytes)

    tree = TreeReader(repository, store(repository, {"mem": STREAM}))
    before = set(threading.enumerate())
    with pytest.raises(Refused, match=verb):
        tree.pour({"mem": Failing()}, threads=3)
    assert set(threading.enumerate()) <= before


def test_a_store_that_fails(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {"mem": STREAM})

    def fail(verb: str, name: str) -> None:
        if verb == "get_range" and name.startswith("packs/"):
            raise StoreUnreachableError(store="memory", what="it went away")

    tree = TreeReader(over(repository, FaultyBackend(backend, before=fail)), ref)
    with pytest.raises(StoreUnreachableError) as error:
        tree.pour({"mem": PageRecorder()}, threads=2)
    assert error.value.exit_code == ExitCode.UNREACHABLE


def test_a_stream_read_twice_gives_the_same(repository: Repository) -> None:
    tree = TreeReader(repository, store(repository, {"mem": PieceSource(STREAM)}))
    for _ in range(2):
        sink = PageRecorder()
        tree.pour({"mem": sink}, threads=2)
        assert sink.pages == pages_of(STREAM)


@given(pieces())
def test_pieces_that_follow_one_another_are_one_write(sparse: Pieces) -> None:
    chunks = [
        (start + at, data[at : at + 4096]) for start, data in sparse for at in range(0, len(data), 4096)
    ]
    joined = list(reader.join_pieces(chunks[::-1]))
    taken_apart = [
        (start + sum(map(len, parts[:n])), part) for start, parts in joined for n, part in enumerate(parts)
    ]
    assert taken_apart == chunks
    ends = [start + sum(map(len, parts)) for start, parts in joined]
    assert not set(ends) & {start for start, _ in joined}
