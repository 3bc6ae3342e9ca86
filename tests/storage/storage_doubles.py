"""Stand-ins for the tests: sources, sinks and backends that can be looked into or made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cw_snapshot.storage.backend import Backend, StoredObject, check_name, check_prefix
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.chunkids import ids_from_list
from cw_snapshot.storage.commit import Commit, NodeManifest
from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.errors import ObjectMissingError, ObjectTooShortError
from cw_snapshot.storage.index import IndexedPack
from cw_snapshot.storage.interfaces import PageSource
from cw_snapshot.storage.manifest import EXTENT, Extents, ManifestRef
from cw_snapshot.storage.packs import ENTRY, ENTRY_SIZE, HEADER_SIZE, TRAILER_SIZE
from cw_snapshot.storage.pages import PAGE_SIZE, Bytes
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter, WriterSizes

SMALL_CHUNKS = ChunkerParams(average=4 * PAGE_SIZE, maximum=16 * PAGE_SIZE, seed=7)
SMALL_SIZES = WriterSizes(read_unit=32 * PAGE_SIZE, pack_target=64 * PAGE_SIZE, pack_entries=64)
MEMORY = 8 << 20

Pieces = list[tuple[int, bytes]]
"""(start address, whole pages), ascending."""


def random_pages(count: int, seed: int = 0) -> bytes:
    """`count` pages that are different, compress badly and are the same for the same seed."""
    return np.random.default_rng(seed).bytes(count * PAGE_SIZE)


def text_pages(count: int, seed: int = 0) -> bytes:
    """`count` pages that are different and compress well."""
    words = np.random.default_rng(seed).integers(0, 1 << 63, count).tolist()
    return b"".join((b"%016x" % word) * (PAGE_SIZE // 16) for word in words)


def extents(*rows: tuple[int, int, int]) -> Extents:
    """Extents of (start, pages, chunk)."""
    return np.array([*rows], dtype=EXTENT)


def indexed_pack(ids: list[bytes], number: int = 0) -> IndexedPack:
    """A pack that holds chunks of these ids, each stored in 100 bytes."""
    entries = np.zeros(len(ids), dtype=ENTRY)
    entries["id"] = ids_from_list(ids)
    entries["offset"] = HEADER_SIZE + 100 * np.arange(len(ids))
    entries["stored"], entries["raw"], entries["codec"] = 100, 4096, 1
    size = HEADER_SIZE + 100 * len(ids) + ENTRY_SIZE * len(ids) + TRAILER_SIZE
    return IndexedPack(digest=f"{number:064x}", size=size, entries=entries)


def random_ids(count: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(32) for _ in range(count)]


class PieceSource:
    """A `PageSource` over pieces; counts what is read."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.read_bytes = 0
        self.finished = False

    def runs(self) -> Sequence[tuple[int, int]]:
        return [(start, len(data)) for start, data in self.pieces]

    def read_into(self, start: int, buffer: memoryview) -> None:
        for begin, data in self.pieces:
            if begin <= start and start + len(buffer) <= begin + len(data):
                buffer[:] = data[start - begin : start - begin + len(buffer)]
                self.read_bytes += len(buffer)
                return
        raise AssertionError(f"read of {len(buffer)} bytes at {start:#x} is not within a run")

    def finish(self) -> None:
        self.finished = True


class EndlessSource(PieceSource):
    """`count` random pages that are made when they are read."""

    def __init__(self, count: int, seed: int = 0) -> None:
        super().__init__([])
        self._count = count
        self._seed = seed

    def runs(self) -> Sequence[tuple[int, int]]:
        return [(0, self._count * PAGE_SIZE)]

    def read_into(self, start: int, buffer: memoryview) -> None:
        rng = np.random.default_rng((self._seed, start))
        buffer[:] = rng.bytes(len(buffer))
        self.read_bytes += len(buffer)


class PageRecorder:
    """A `PageSink` that keeps every page and refuses to get one twice."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.zeros: set[int] = set()
        self._lock = threading.Lock()

    def write(self, start: int, parts: Sequence[Bytes]) -> None:
        assert start % PAGE_SIZE == 0 and parts
        assert all(len(part) % PAGE_SIZE == 0 and len(part) > 0 for part in parts)
        data = b"".join(parts)
        with self._lock:
            for at in range(0, len(data), PAGE_SIZE):
                self._add(start + at, data[at : at + PAGE_SIZE])

    def zero(self, start: int, nbytes: int) -> None:
        assert start % PAGE_SIZE == 0 and nbytes % PAGE_SIZE == 0 and nbytes > 0
        with self._lock:
            for at in range(start, start + nbytes, PAGE_SIZE):
                self._add(at, bytes(PAGE_SIZE))
                self.zeros.add(at)

    def _add(self, start: int, page: bytes) -> None:
        assert start not in self.pages, f"page {start:#x} was delivered twice"
        self.pages[start] = page


def pages_of(pieces: Pieces) -> dict[int, bytes]:
    """What a `PageRecorder` must have after `pieces` were stored and poured."""
    return {
        start + at: data[at : at + PAGE_SIZE]
        for start, data in pieces
        for at in range(0, len(data), PAGE_SIZE)
    }


class MemoryBackend(Backend):
    """Objects in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return "memory"

    def put(self, name: str, data: Bytes) -> None:
        check_name(name)
        with self._lock:
            self.objects[name] = bytes(data)

    def put_if_absent(self, name: str, data: Bytes) -> bool:
        check_name(name)
        with self._lock:
            if name in self.objects:
                return False
            self.objects[name] = bytes(data)
            return True

    def get_range(self, name: str, offset: int = 0, length: int | None = None) -> Bytes:
        check_name(name)
        data = self.objects.get(name)
        if data is None:
            raise ObjectMissingError(name=name, store=self.location)
        end = len(data) if length is None else offset + length
        if not 0 <= offset <= end <= len(data):
            raise ObjectTooShortError(name=name, store=self.location, end=max(offset, end))
        return data[offset:end]

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        for name, data in self.objects.copy().items():
            if name.startswith(prefix):
                yield StoredObject(name, len(data))

    def head(self, name: str) -> int | None:
        check_name(name)
        data = self.objects.get(name)
        return None if data is None else len(data)

    def delete(self, name: str) -> None:
        check_name(name)
        with self._lock:
            self.objects.pop(name, None)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix))

    def only(self, prefix: str) -> str:
        (name,) = self.names(prefix)
        return name

    def flip(self, name: str, at: int, bit: int = 0) -> None:
        """Flip one bit of an object."""
        data = bytearray(self.objects[name])
        data[at] ^= 1 << bit
        self.objects[name] = bytes(data)


class FaultyBackend(Backend):
    """Passes everything on to another backend; before and after each verb a hook may raise or wait."""

    def __init__(
        self,
        inner: Backend,
        before: Callable[[str, str], None] = lambda verb, name: None,
        after: Callable[[str, str], None] = lambda verb, name: None,
    ) -> None:
        self._inner = inner
        self._before = before
        self._after = after

    @property
    def location(self) -> str:
        return self._inner.location

    def put(self, name: str, data: Bytes) -> None:
        self._before("put", name)
        self._inner.put(name, data)
        self._after("put", name)

    def put_if_absent(self, name: str, data: Bytes) -> bool:
        self._before("put_if_absent", name)
        created = self._inner.put_if_absent(name, data)
        self._after("put_if_absent", name)
        return created

    def get_range(self, name: str, offset: int = 0, length: int | None = None) -> Bytes:
        self._before("get_range", name)
        data = self._inner.get_range(name, offset, length)
        self._after("get_range", name)
        return data

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._before("list", prefix)
        yield from self._inner.list(prefix)

    def head(self, name: str) -> int | None:
        self._before("head", name)
        return self._inner.head(name)

    def delete(self, name: str) -> None:
        self._before("delete", name)
        self._inner.delete(name)
        self._after("delete", name)


def over(repository: Repository, backend: Backend) -> Repository:
    """The same repository through another backend."""
    return Repository(backend, repository.config)


def writer(repository: Repository, **options: Any) -> TreeWriter:
    """A writer with small sizes and a broker of its own."""
    options = {"threads": 2, "memory": MEMORY, "sizes": SMALL_SIZES} | options
    broker = options.pop("broker", None) or LocalBroker(repository.load_index())
    return TreeWriter(repository, broker, **options)


def store(repository: Repository, streams: Mapping[str, Pieces | PageSource], **options: Any) -> ManifestRef:
    """Store a tree of these streams, each in a lane of its own."""
    with writer(repository, **options) as tree:
        for name, pieces in streams.items():
            source = PieceSource(pieces) if isinstance(pieces, list) else pieces
            tree.add_stream(name, source, lane=name)
        return tree.finish({"streams": list(streams)})


def take(repository: Repository, streams: Mapping[str, Pieces], job: str = "job", **fields: Any) -> Commit:
    """Store a tree and commit it as a snapshot of one node."""
    ref = store(repository, streams)
    return repository.commit(
        job=job,
        incarnation=0,
        nodes=[NodeManifest(node="node-0", digest=ref.digest, size=ref.size)],
        indexes=[ref.index] if ref.index else [],
        **fields,
    )


def pour(repository: Repository, ref: ManifestRef, threads: int = 2) -> dict[str, PageRecorder]:
    """Everything in a tree, stream by stream."""
    tree = TreeReader(repository, ref)
    sinks = {name: PageRecorder() for name in tree.streams}
    tree.pour(sinks, threads=threads)
    return sinks


def manifest_of(commit: Commit) -> ManifestRef:
    (entry,) = commit.nodes
    return entry.ref
