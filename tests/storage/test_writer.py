"""Storing trees: what comes out is what went in, once, in bounded memory; and nothing after an error."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import (
    MEMORY,
    SMALL_CHUNKS,
    SMALL_SIZES,
    EndlessSource,
    FaultyBackend,
    MemoryBackend,
    Pieces,
    PieceSource,
    over,
    pages_of,
    pour,
    random_pages,
    store,
    text_pages,
    writer,
)
from storage_strategies import pieces

from cw_snapshot.errors import ExitCode, InternalError
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.errors import MemoryBudgetError, StoppedError, StoreFullError
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.interfaces import Claim
from cw_snapshot.storage.lanes import LanePacks
from cw_snapshot.storage.memory import BytesSource
from cw_snapshot.storage.packs import Frame, read_footer
from cw_snapshot.storage.pages import PAGE_SIZE
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter, WriterSizes, WriteStats, share_memory

MIB = 1 << 20


# --- round trips ------------------------------------------------------------------------------


@given(st.lists(pieces(), max_size=3), st.integers(1, 3), st.integers(1, 40))
def test_round_trip(streams: list[Pieces], threads: int, unit: int) -> None:
    repository = Repository.init(MemoryBackend(), chunker=SMALL_CHUNKS)
    named = {f"pages/{number}": stream for number, stream in enumerate(streams)}
    sizes = WriterSizes(read_unit=unit * PAGE_SIZE, pack_target=32 * PAGE_SIZE, pack_entries=16)
    ref = store(repository, named, threads=threads, sizes=sizes)
    found = pour(repository, ref, threads)
    assert list(found) == list(named)
    for name, stream in named.items():
        assert found[name].pages == pages_of(stream)
        assert found[name].zeros == {at for at, page in pages_of(stream).items() if not any(page)}


def test_many_streams_from_many_threads(repository: Repository) -> None:
    streams = {f"pages/{n}": [(n * MIB, random_pages(150, n) + text_pages(30, n))] for n in range(12)}
    errors: list[BaseException] = []
    with writer(repository, threads=3) as tree:

        def add(mine: list[str]) -> None:
            try:
                for name in mine:
                    tree.add_stream(name, PieceSource(streams[name]), lane=f"rank-{name[-1]}")
            except BaseException as error:
                errors.append(error)

        names = list(streams)
        threads = [threading.Thread(target=add, args=(names[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        ref = tree.finish({"a": 1})
    found = pour(repository, ref, threads=3)
    assert {name: sink.pages for name, sink in found.items()} == {
        name: pages_of(stream) for name, stream in streams.items()
    }


def test_metadata_and_sizes(repository: Repository) -> None:
    with writer(repository) as tree:
        tree.add_stream("core.img", BytesSource(b"x" * 5000), "meta", size=5000)
        tree.add_stream("empty", BytesSource(b""), "meta", size=0)
        tree.add_stream("sparse", BytesSource(bytes(9000) + b"end"), "meta", size=9003)
        ref = tree.finish({"pid": 7, "list": [1, None, "ä"]})
    reader = TreeReader(repository, ref)
    assert reader.metadata == {"pid": 7, "list": [1, None, "ä"]}
    assert {name: stream.size for name, stream in reader.streams.items()} == {
        "core.img": 5000,
        "empty": 0,
        "sparse": 9003,
    }
    assert reader.read_file("core.img") == b"x" * 5000
    assert reader.read_files(["empty", "sparse"]) == {"empty": b"", "sparse": bytes(9000) + b"end"}


def test_nothing_at_all(repository: Repository, backend: MemoryBackend) -> None:
    ref = store(repository, {})
    assert ref.index is None
    assert backend.names("packs/") == []
    assert pour(repository, ref) == {}


# --- what is found again ----------------------------------------------------------------------


def test_a_replica_at_other_addresses_is_found(repository: Repository) -> None:
    """Two ranks of a data-parallel job: the same tensors, shifted by whole pages, between other things."""
    tensors = [random_pages(300, seed) for seed in range(4)]

    def rank(number: int) -> Pieces:
        at, stream = (0x7F00 + number) << 32, []
        for place, tensor in enumerate(tensors if number == 0 else reversed(tensors)):
            own = random_pages(3 + number + place, 1000 + 10 * number + place)
            stream.append((at, own + tensor))
            at += len(own) + len(tensor) + (1 + number) * 5 * PAGE_SIZE
        return stream

    with writer(repository) as tree:
        tree.add_stream("rank-0", PieceSource(rank(0)), "rank-0")
        while tree.stats.seen_bytes < sum(len(data) for _, data in rank(0)):
            time.sleep(0.005)
        first = tree.stats
        tree.add_stream("rank-1", PieceSource(rank(1)), "rank-1")
        ref = tree.finish({})
        second = tree.stats
    shared = sum(map(len, tensors))
    assert first.peer_bytes == 0
    assert second.peer_bytes >= 0.95 * shared
    found = pour(repository, ref)
    assert found["rank-1"].pages == pages_of(rank(1))


def test_a_second_take_stores_only_what_changed(repository: Repository, backend: MemoryBackend) -> None:
    before: Pieces = [(0, random_pages(400, 1)), (MIB << 4, text_pages(100, 2))]
    after: Pieces = [(0, random_pages(400, 1)), (MIB << 4, text_pages(90, 2) + text_pages(10, 3))]
    store(repository, {"mem": before})
    packs = set(backend.names("packs/"))
    with writer(repository) as tree:
        tree.add_stream("mem", PieceSource(after), "rank")
        ref = tree.finish({})
        stats = tree.stats
    assert stats.known_bytes + stats.new_bytes == 500 * PAGE_SIZE
    assert stats.new_bytes <= (10 + 2 * 16) * PAGE_SIZE
    assert len(set(backend.names("packs/")) - packs) == 1
    assert pour(repository, ref)["mem"].pages == pages_of(after)


def test_nothing_new_needs_no_pack_and_no_index(repository: Repository, backend: MemoryBackend) -> None:
    first = store(repository, {"mem": [(0, random_pages(50))]})
    count = len(backend.objects)
    second = store(repository, {"mem": [(0, random_pages(50))]})
    assert second.index is None
    assert first.digest == second.digest
    assert len(backend.objects) == count


def test_stats(repository: Repository) -> None:
    seen: list[WriteStats] = []
    same = random_pages(8, 1)
    with writer(repository, progress=seen.append) as tree:
        tree.add_stream(
            "mem", PieceSource([(0, same + bytes(4 * PAGE_SIZE) + same + text_pages(40))]), "rank"
        )
        tree.finish({})
        stats = tree.stats
    assert stats.seen_bytes == 60 * PAGE_SIZE
    assert stats.zero_bytes == 4 * PAGE_SIZE
    assert stats.known_bytes == 0
    assert stats.new_bytes + stats.peer_bytes == 56 * PAGE_SIZE
    assert stats.peer_bytes > 0
    assert 8 * PAGE_SIZE < stats.stored_bytes < 20 * PAGE_SIZE
    assert stats.new_chunks < stats.chunks
    assert seen[-1] == stats
    assert [s.seen_bytes for s in seen] == sorted(s.seen_bytes for s in seen)


def test_what_a_peer_stores_is_not_stored_here(repository: Repository, backend: MemoryBackend) -> None:
    class PeerHasAll:
        def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
            return [Claim.PEER] * len(ids)

    stream: Pieces = [(0, random_pages(100))]
    ref = store(repository, {"mem": stream}, broker=PeerHasAll())
    assert backend.names("packs/") == []
    other = store(repository, {"mem": stream}, broker=LocalBroker(ChunkIndex([])))
    assert other.digest == ref.digest
    assert pour(repository, ref)["mem"].pages == pages_of(stream)


def test_a_broker_that_answers_nonsense(repository: Repository, backend: MemoryBackend) -> None:
    class TooFew:
        def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
            return [Claim.KNOWN] * (len(ids) - 1)

    with pytest.raises(ValueError, match="zip"):
        store(repository, {"mem": [(0, random_pages(100))]}, broker=TooFew())
    assert backend.names("manifests/") == []


# --- order in packs ---------------------------------------------------------------------------


def test_packs_keep_the_order_of_the_addresses(
    repository: Repository, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order the workers finish in: a restore should read packs from front to back."""
    rng = np.random.default_rng(0)
    append = LanePacks.append

    class Jumbling(LocalBroker):
        def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
            time.sleep(float(rng.uniform(0, 0.01)))
            return super().claim(ids)

    def hesitating(self: LanePacks, lane: str, frames: list[Frame]) -> None:
        time.sleep(float(rng.uniform(0, 0.01)))
        append(self, lane, frames)

    monkeypatch.setattr(LanePacks, "append", hesitating)
    data = random_pages(600)
    broker = Jumbling(ChunkIndex([]))
    sizes = WriterSizes(read_unit=8 * PAGE_SIZE, pack_target=4 * MIB, pack_entries=1024)
    ref = store(repository, {"mem": [(0, data)]}, threads=4, broker=broker, sizes=sizes, memory=16 * MIB)
    name = backend.only("packs/")
    order = [entry["id"].tobytes() for entry in read_footer(backend, name, len(backend.objects[name]))]
    tree = TreeReader(repository, ref)
    numbers = tree.streams["mem"].extents["chunk"].tolist()
    assert numbers == list(range(len(order)))
    assert order == [row.tobytes() for row in tree._manifest.chunks]


def test_lanes_do_not_share_packs(repository: Repository, backend: MemoryBackend) -> None:
    streams = {"one": [(0, random_pages(100, 1))], "two": [(0, random_pages(100, 2))]}
    ref = store(repository, streams)
    tree = TreeReader(repository, ref)
    of_stream = {
        name: {tree._manifest.chunks[n].tobytes() for n in stream.extents["chunk"].tolist()}
        for name, stream in tree.streams.items()
    }
    for name in backend.names("packs/"):
        entries = read_footer(backend, name, len(backend.objects[name]))
        ids = {entry["id"].tobytes() for entry in entries}
        assert ids <= of_stream["one"] or ids <= of_stream["two"]


def test_more_lanes_than_buffers(repository: Repository) -> None:
    """Packs get smaller; nothing stands still."""
    streams = {f"lane/{n}": [(0, random_pages(40, n))] for n in range(20)}
    budget = 1536 << 10
    assert share_memory(budget, SMALL_SIZES, SMALL_CHUNKS).packs == 2
    errors: list[BaseException] = []
    with writer(repository, memory=budget, threads=3) as tree:

        def add(name: str) -> None:
            try:
                tree.add_stream(name, PieceSource(streams[name]), lane=name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=add, args=(name,)) for name in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors
        ref = tree.finish({})
    for name, sink in pour(repository, ref).items():
        assert sink.pages == pages_of(streams[name])


# --- memory -----------------------------------------------------------------------------------


def test_the_budget_is_shared() -> None:
    counts = share_memory(512 << 20, WriterSizes(), ChunkerParams())
    assert (counts.batches, counts.packs) == (15, 7)
    with pytest.raises(MemoryBudgetError) as error:
        share_memory(64 << 20, WriterSizes(), ChunkerParams())
    assert error.value.exit_code == ExitCode.USAGE
    assert "64 MiB" in error.value.message
    needed = error.value.fields["needed"]
    assert share_memory(needed << 20, WriterSizes(), ChunkerParams()).batches >= 2
    with pytest.raises(MemoryBudgetError):
        share_memory((needed - 1) << 20, WriterSizes(), ChunkerParams())


def test_a_slow_store_stops_the_reading(repository: Repository) -> None:
    """When nothing can be stored, no more is read than the budget holds; and it goes on afterwards."""
    budget = 4 * MIB
    sizes = WriterSizes(read_unit=64 << 10, pack_target=512 << 10)
    release = threading.Event()

    def hold(verb: str, name: str) -> None:
        if verb == "put":
            assert release.wait(30)

    slow = over(repository, FaultyBackend(repository.backend, before=hold))
    source = EndlessSource(6000)
    tracemalloc.start()
    try:
        with writer(slow, memory=budget, sizes=sizes) as tree:
            thread = threading.Thread(target=tree.add_stream, args=("mem", source, "rank"))
            thread.start()
            last = -1
            while source.read_bytes != last:  # until nothing moves
                last = source.read_bytes
                time.sleep(0.2)
            assert 0 < source.read_bytes <= budget
            assert thread.is_alive()
            release.set()
            thread.join()
            ref = tree.finish({})
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        release.set()
        tracemalloc.stop()
    assert source.read_bytes == 6000 * PAGE_SIZE
    # The doubles' own copies: the objects in memory, and one unit while it is made.
    stored = sum(len(data) for data in repository.backend.objects.values())
    assert peak - stored <= budget + 2 * MIB
    assert sum(len(s.pages) for s in pour(repository, ref).values()) == 6000


# --- failing ----------------------------------------------------------------------------------


class SourceDied(Exception):  # noqa: N818
    pass


class DyingSource(PieceSource):
    def __init__(self, pieces: Pieces, after: int) -> None:
        super().__init__(pieces)
        self._after = after

    def read_into(self, start: int, buffer: memoryview) -> None:
        if self.read_bytes >= self._after:
            raise SourceDied("while reading")
        super().read_into(start, buffer)


class UntrustedSource(PieceSource):
    def finish(self) -> None:
        raise SourceDied("at the end")


@pytest.mark.parametrize("kind", ["first read", "later read", "finish", "runs"])
def test_a_source_that_fails(repository: Repository, backend: MemoryBackend, kind: str) -> None:
    stream: Pieces = [(0, random_pages(300))]
    source: PieceSource
    match kind:
        case "first read":
            source = DyingSource(stream, 0)
        case "later read":
            source = DyingSource(stream, 100 * PAGE_SIZE)
        case "finish":
            source = UntrustedSource(stream)
        case _:
            source = PieceSource([(1, b"not whole pages")])
    tree = writer(repository)
    tree.add_stream("good", PieceSource([(0, random_pages(50, 9))]), "meta")
    expected = InternalError if kind == "runs" else SourceDied
    with pytest.raises(expected) as error:
        tree.add_stream("bad", source, "rank")
    for call in (
        lambda: tree.add_stream("next", PieceSource(stream), "rank"),
        lambda: tree.finish({}),
    ):
        with pytest.raises(StoppedError) as stopped:
            call()
        assert stopped.value.__cause__ is error.value
    tree.close()
    assert backend.names("manifests/") == []
    assert backend.names("index/") == []
    assert repository.list_snapshots() == []


def test_another_thread_hears_of_a_failure_with_its_cause(repository: Repository) -> None:
    """One call raises the error itself, every other one that it was stopped by it."""
    raised: list[BaseException] = []
    with writer(repository) as tree:

        def add(name: str, source: PieceSource) -> None:
            try:
                tree.add_stream(name, source, name)
            except BaseException as error:
                raised.append(error)

        sources = {"dying": DyingSource([(0, random_pages(300))], 200 * PAGE_SIZE)}
        sources |= {f"long-{n}": EndlessSource(1_000_000, n) for n in range(2)}
        threads = [threading.Thread(target=add, args=item) for item in sources.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a failure stops everything promptly"
    assert sorted(type(error).__name__ for error in raised) == ["SourceDied", "StoppedError", "StoppedError"]
    (cause,) = (error for error in raised if isinstance(error, SourceDied))
    assert all(error.__cause__ is cause for error in raised if error is not cause)


STREAMS = {"one": [(0, random_pages(200, 1))], "two": [(0, text_pages(200, 2))]}


def _count_puts() -> int:
    puts: list[str] = []
    backend = MemoryBackend()
    repository = Repository.init(backend, chunker=SMALL_CHUNKS)
    counting = FaultyBackend(backend, before=lambda verb, name: puts.append(name) if "put" in verb else None)
    store(over(repository, counting), STREAMS)
    assert any(name.startswith("packs/") for name in puts)
    assert puts[-2].startswith("index/")
    assert puts[-1].startswith("manifests/")
    return len(puts)


PUTS = _count_puts()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("which", range(PUTS))
def test_a_store_that_fails_at_any_put(
    repository: Repository, backend: MemoryBackend, which: int, after: bool
) -> None:
    """Whether the put was done or not when it failed: the error comes out, no manifest is given."""
    lock, count = threading.Lock(), [0]

    def fail(verb: str, name: str) -> None:
        with lock:
            count[0] += 1
            if count[0] == which + 1:
                raise StoreFullError(store="memory", what="no space left on device")

    faulty = FaultyBackend(backend, after=fail) if after else FaultyBackend(backend, before=fail)
    before = set(threading.enumerate())
    with pytest.raises(StoreFullError) as error:
        # With the index given, only puts reach the hook.
        store(over(repository, faulty), STREAMS, broker=LocalBroker(ChunkIndex([])))
    assert error.value.exit_code == ExitCode.UNREACHABLE
    assert set(threading.enumerate()) <= before, "all threads have ended when the error comes out"
    assert repository.list_snapshots() == []
    again = store(repository, STREAMS)
    for name, sink in pour(repository, again).items():
        assert sink.pages == pages_of(STREAMS[name])


def test_a_store_that_fails_while_a_source_is_read(repository: Repository) -> None:
    """The reading thread is the one that is waiting: it raises the store's error, not its own."""

    def fail(verb: str, name: str) -> None:
        raise StoreFullError(store="memory", what="no space left on device")

    with (
        writer(
            over(repository, FaultyBackend(repository.backend, before=fail)),
            broker=LocalBroker(ChunkIndex([])),
        ) as tree,
        pytest.raises(StoreFullError),
    ):
        tree.add_stream("mem", EndlessSource(1_000_000), "rank")


@pytest.mark.parametrize("stage", ["progress", "init", "broker"])
def test_a_callback_that_fails(repository: Repository, stage: str) -> None:
    def fail(*_: object) -> None:
        raise SourceDied(stage)

    class Broker:
        claim = fail

    options = {"progress": {"progress": fail}, "init": {"worker_init": fail}, "broker": {"broker": Broker()}}
    with pytest.raises(SourceDied, match=stage):
        store(repository, STREAMS, **options[stage])


def test_workers_are_initialised(repository: Repository) -> None:
    names: list[str] = []
    store(repository, STREAMS, threads=3, worker_init=lambda: names.append(threading.current_thread().name))
    assert sorted(names) == ["cw-store-0", "cw-store-1", "cw-store-2", "cw-upload-0", "cw-upload-1"]


def test_giving_up_leaves_nothing_behind(repository: Repository, backend: MemoryBackend) -> None:
    before = set(threading.enumerate())
    with writer(repository) as tree:
        tree.add_stream("mem", PieceSource([(0, random_pages(100))]), "rank")
    assert set(threading.enumerate()) <= before
    assert backend.names("manifests/") == []
    with pytest.raises(StoppedError):
        tree.finish({})


def test_wrong_use(repository: Repository) -> None:
    for name in ("", "../x", "a\n"):
        with writer(repository) as tree, pytest.raises(InternalError):
            tree.add_stream(name, PieceSource([]), "rank")
    with writer(repository) as tree:
        tree.add_stream("a", PieceSource([]), "rank")
        with pytest.raises(InternalError, match="twice"):
            tree.add_stream("a", PieceSource([]), "rank")
    tree = writer(repository)
    tree.finish({})
    with pytest.raises(InternalError):
        tree.add_stream("a", PieceSource([]), "rank")
    with pytest.raises((InternalError, StoppedError)):
        tree.finish({})
    with pytest.raises(ValueError, match="JSON"):
        writer(repository).finish({"x": object()})
    with pytest.raises(MemoryBudgetError):
        TreeWriter(repository, LocalBroker(ChunkIndex([])), threads=1, memory=MEMORY // 100)
