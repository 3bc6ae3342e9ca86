"""Pouring a tree: a manifest in, the pages of its streams out.

Pages come from packs in the packs' order, by several threads, each chunk read and decompressed
once and verified against its id before any sink sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cw_snapshot.storage import layout
from cw_snapshot.storage.chunkids import id_hex
from cw_snapshot.storage.errors import (
    ChunkMissingError,
    ManifestDamagedError,
    StreamMissingError,
)
from cw_snapshot.storage.fetch import Fetcher
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.interfaces import PageSink
from cw_snapshot.storage.manifest import (
    MAX_MANIFEST_SIZE,
    Extents,
    Manifest,
    ManifestRef,
    Stream,
    decode_manifest,
)
from cw_snapshot.storage.memory import BytesSink
from cw_snapshot.storage.pages import PAGE_SIZE, Bytes
from cw_snapshot.storage.pipeline import Monitor, run_crew
from cw_snapshot.storage.plan import (
    ChunkTable,
    Read,
    ReadLimits,
    ZeroRun,
    chunk_table,
    find_wrong_length,
    plan_deliveries,
    plan_reads,
    wanted_chunks,
    zero_runs,
)
from cw_snapshot.storage.repository import Repository

MAX_FILE_SIZE = 256 << 20
"""Bytes of a file that `read_file` gives in one piece."""

_ZERO_BATCH = 256

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def load_manifest(repository: Repository, ref: ManifestRef) -> Manifest:
    """The manifest of `ref`, compared with its hash.

    :raises ManifestDamagedError: it can't be trusted.
    :raises ObjectMissingError: it is gone.
    """
    name = layout.manifest_name(ref.digest)
    data = layout.read_addressed(
        repository.backend, name, limit=MAX_MANIFEST_SIZE, damaged=ManifestDamagedError
    )
    if len(data) != ref.size:
        raise ManifestDamagedError(name=name, what=f"it has {len(data)} bytes instead of {ref.size}")
    return decode_manifest(data, name, repository.config.repository_id)


class TreeReader:
    """One tree's part of a snapshot."""

    def __init__(self, repository: Repository, ref: ManifestRef, *, index: ChunkIndex | None = None) -> None:
        """Load and check the manifest.

        :param index: where chunks are; if None it is loaded when it is first needed. Readers of
            one restore should share one.
        """
        self._repository = repository
        self._name = layout.manifest_name(ref.digest)
        self._manifest = load_manifest(repository, ref)
        self._index = index
        self._index_lock = threading.Lock()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was given to `TreeWriter.finish`."""
        return self._manifest.metadata

    @property
    def streams(self) -> Mapping[str, Stream]:
        """By name."""
        return self._manifest.streams

    def read_file(self, name: str) -> bytes:
        """All bytes of one stream that was stored with a size."""
        return self.read_files([name])[name]

    def read_files(self, names: Sequence[str], *, threads: int = 1) -> dict[str, bytes]:
        """All bytes of several streams, read together.

        :raises StreamMissingError: there is no such stream, or it has no size.
        """
        sinks = {}
        for name in names:
            stream = self._stream(name)
            if stream.size is None:
                raise StreamMissingError(name=self._name, stream=name, evidence=["it is memory, not a file"])
            if stream.size > MAX_FILE_SIZE:
                raise ManifestDamagedError(
                    name=self._name,
                    what=f'stream "{name}" of {stream.size} bytes is too large to be read in one piece',
                )
            sinks[name] = BytesSink(stream.size)
        self.pour(sinks, threads=threads)
        return {name: sink.value() for name, sink in sinks.items()}

    def check(self) -> None:
        """Find out, reading no pages, whether every chunk of every stream is in a pack that is there.

        :raises IntegrityError: the first thing that is missing.
        """
        self._locate([stream.extents for stream in self._manifest.streams.values()], self._load_index())

    def pour(
        self,
        sinks: Mapping[str, PageSink],
        *,
        threads: int,
        progress: Progress | None = None,
        worker_init: Callable[[], None] | None = None,
        limits: ReadLimits | None = None,
    ) -> None:
        """Deliver all pages of the streams named in `sinks`.

        Whatever is wrong with index, sizes and packs' presence is found before the first page is
        delivered; a damaged chunk only when it is read, and it is never delivered. The first error
        stops all threads and is raised.

        :param threads: threads that read, decompress and write. Each holds one read
            (`limits.longest` bytes) and its chunks, decompressed.
        :param progress: called by one thread at a time, with ascending numbers.
        :raises StreamMissingError: there is no stream of that name.
        :raises IntegrityError: what is stored can't be trusted.
        """
        streams = [self._stream(name).extents for name in sinks]
        targets = list(sinks.values())
        index = self._load_index()
        table = self._locate(streams, index)
        deliveries = plan_deliveries(streams, table, len(self._manifest.chunks))
        zeros = zero_runs(streams)
        tasks: list[Read | list[ZeroRun]] = [
            zeros[at : at + _ZERO_BATCH] for at in range(0, len(zeros), _ZERO_BATCH)
        ]
        tasks += plan_reads(table, limits or ReadLimits())
        total = sum(int(extents["pages"].sum(dtype=np.uint64)) for extents in streams) * PAGE_SIZE
        meter = Meter(progress, total)
        backend, key = self._repository.backend, self._repository.config.key

        def worker() -> Callable[[Read | list[ZeroRun]], None]:
            fetcher = Fetcher(backend, index, table, key)

            def work(task: Read | list[ZeroRun]) -> None:
                if isinstance(task, list):
                    for run in task:
                        targets[run.sink].zero(run.start, run.nbytes)
                    meter.add(sum(run.nbytes for run in task))
                    return
                bounds = deliveries.bounds[task.first : task.last + 1].tolist()
                sink = deliveries.sink[bounds[0] : bounds[-1]].tolist()
                start = deliveries.start[bounds[0] : bounds[-1]].tolist()
                pieces: dict[int, list[Piece]] = {}
                done = 0
                for row, chunk in fetcher.chunks(task):
                    here = row - task.first
                    for at in range(bounds[here] - bounds[0], bounds[here + 1] - bounds[0]):
                        pieces.setdefault(sink[at], []).append((start[at], chunk))
                        done += len(chunk)
                for number, found in pieces.items():
                    for first, parts in join_pieces(found):
                        targets[number].write(first, parts)
                meter.add(done)

            return work

        run_crew(Monitor(), tasks, worker, name="cw-pour", threads=threads, worker_init=worker_init)

    def _stream(self, name: str) -> Stream:
        stream = self._manifest.streams.get(name)
        if stream is None:
            raise StreamMissingError(name=self._name, stream=name)
        return stream

    def _load_index(self) -> ChunkIndex:
        with self._index_lock:
            if self._index is None:
                self._index = self._repository.load_index()
            return self._index

    def _locate(self, streams: Sequence[Extents], index: ChunkIndex) -> ChunkTable:
        """The table of all chunks of `streams`, or an error that names what is not there."""
        ids = self._manifest.chunks
        numbers = wanted_chunks(streams)
        rows = index.find(ids[numbers])
        missing = numbers[rows < 0]
        if len(missing):
            raise ChunkMissingError(name=self._name, count=len(missing), chunk=id_hex(ids[missing[0]]))
        table = chunk_table(ids, numbers, rows, index)
        for pack in np.unique(table.pack).tolist():
            if index.is_lost(pack):
                raise self._repository.explain_lost(index.packs[pack], index.pack_sizes[pack])
        raw = np.zeros(len(ids), dtype=np.uint32)
        raw[table.number] = table.raw
        wrong = find_wrong_length(streams, numbers, raw)
        if wrong is not None:
            what = f"chunk {id_hex(ids[wrong])} has another length in its pack"
            raise ManifestDamagedError(name=self._name, what=what)
        return table


Piece = tuple[int, Bytes]
"""Address and bytes of a chunk."""


def join_pieces(pieces: list[Piece]) -> Iterator[tuple[int, list[Bytes]]]:
    """Pieces that follow one another in memory as one write each: a call per chunk would cost
    more than the copying."""
    parts: list[Bytes] = []
    begin = end = -1
    for start, data in sorted(pieces, key=lambda piece: piece[0]):
        if start != end and parts:
            yield begin, parts
            parts = []
        if not parts:
            begin = end = start
        parts.append(data)
        end += len(data)
    if parts:
        yield begin, parts


class Meter:
    """Adds up what several threads have done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)
