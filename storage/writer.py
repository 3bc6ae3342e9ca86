"""Storing a tree: streams in, packs, an index and a manifest out.

    caller's thread   read a unit, cut it                       (buffers from a pool)
    worker threads    hash, ask the broker, compress what is ours
                      append to the lane's pack, in stream order
    uploader threads  hash and store full packs
    finish            index, then manifest

What is written becomes a snapshot only when a commit names the manifest: whatever is left
behind by a failure is unreferenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

import numpy as np

from cw_snapshot.errors import InternalError
from cw_snapshot.storage import layout
from cw_snapshot.storage.batches import Buffer, Cut, Result, StreamBuild, buffer_size, read_cuts
from cw_snapshot.storage.chunkids import chunk_id, unique_ids
from cw_snapshot.storage.codec import Compressor
from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.errors import MemoryBudgetError, StoppedError
from cw_snapshot.storage.index import IndexedPack, encode_index
from cw_snapshot.storage.interfaces import ChunkBroker, Claim, PageSource
from cw_snapshot.storage.lanes import LanePacks
from cw_snapshot.storage.manifest import (
    Manifest,
    ManifestRef,
    Stream,
    check_stream_name,
    encode_manifest,
    join_zero_extents,
)
from cw_snapshot.storage.packs import Frame, pack_capacity
from cw_snapshot.storage.pipeline import Channel, Crew, Monitor, Pool
from cw_snapshot.storage.repository import Repository


@dataclass(frozen=True)
class WriterSizes:
    """Sizes that a writer works with. The defaults suit everything but tests."""

    read_unit: int = 8 << 20
    """Bytes read and cut at once; whole pages."""
    pack_target: int = 32 << 20
    """Bytes of frames at which a pack is sealed."""
    pack_entries: int = 8192
    """Chunks at which a pack is sealed, however small they are."""
    uploaders: int = 2
    """Threads that store packs."""


@dataclass(frozen=True)
class WriteStats:
    """What a writer has done so far. Bytes are those of pages unless said otherwise."""

    seen_bytes: int = 0
    zero_bytes: int = 0
    known_bytes: int = 0
    """The repository had them."""
    peer_bytes: int = 0
    """Stored by a peer in this operation, or seen before in this tree."""
    new_bytes: int = 0
    """Stored by this writer."""
    stored_bytes: int = 0
    """The new ones as stored, compressed."""
    chunks: int = 0
    """Data extents: a chunk that occurs twice counts twice."""
    new_chunks: int = 0

    def plus(self, other: WriteStats) -> WriteStats:
        names = (field.name for field in fields(self))
        return WriteStats(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class BufferCounts:
    """How a memory budget is spent."""

    batches: int
    packs: int


def share_memory(budget: int, sizes: WriterSizes, params: ChunkerParams) -> BufferCounts:
    """How many read and pack buffers `budget` bytes pay for: about half for each, two at the least.

    A batch is counted twice, for what its chunks become when they are compressed.

    :raises MemoryBudgetError: not even the least fits.
    """
    batch = 2 * buffer_size(sizes.read_unit, params)
    pack = pack_capacity(sizes.pack_target, params.maximum, sizes.pack_entries)
    packs = max(2, budget // 2 // pack)
    batches = (budget - packs * pack) // batch
    if batches < 2:
        needed = 2 * (pack + batch)
        raise MemoryBudgetError(given=budget >> 20, needed=-(-needed >> 20))
    return BufferCounts(batches=batches, packs=packs)


@dataclass(frozen=True)
class _Batch:
    stream: StreamBuild
    sequence: int
    cut: Cut


class TreeWriter:
    """Stores the streams of one tree. Use as a context manager, so that its threads end.

    The first error in any stage, a source's or the store's, stops everything. It is raised once,
    from whichever call is waiting or comes next; other calls raise `StoppedError` with it as the
    cause. After an error nothing can be stored any more, and `finish` makes no manifest.
    """

    def __init__(
        self,
        repository: Repository,
        broker: ChunkBroker,
        *,
        threads: int,
        memory: int,
        progress: Callable[[WriteStats], None] | None = None,
        worker_init: Callable[[], None] | None = None,
        sizes: WriterSizes | None = None,
    ) -> None:
        """Start the threads.

        :param threads: threads that hash and compress.
        :param memory: bytes for buffers; the tables of extents (48 bytes per chunk) come on top.
        :param progress: called after each batch, by one thread at a time, with ascending numbers.
            It must be quick.
        :param worker_init: called first in each thread, for example to lower its priority.
        :raises MemoryBudgetError: `memory` is too small.
        :raises StoreError: the store can't be written to; later would be too late for a job.
        """
        repository.backend.check_writable()
        self._repository = repository
        self._broker = broker
        self._progress = progress
        self._sizes = sizes = sizes or WriterSizes()
        self._params = params = repository.config.chunker
        counts = share_memory(memory, sizes, params)
        batch_size = buffer_size(sizes.read_unit, params)
        pack_size = pack_capacity(sizes.pack_target, params.maximum, sizes.pack_entries)

        self._monitor = monitor = Monitor()
        self._buffers: Pool[Buffer] = Pool(monitor, lambda: np.empty(batch_size, np.uint8), counts.batches)
        self._lanes = LanePacks(
            monitor,
            repository.backend,
            Pool(monitor, lambda: np.empty(pack_size, np.uint8), counts.packs),
            target=sizes.pack_target,
            max_entries=sizes.pack_entries,
            uploaders=sizes.uploaders,
            worker_init=worker_init,
        )
        self._batches: Channel[_Batch] = Channel(monitor)
        self._crew = Crew(
            monitor,
            self._batches,
            self._chunk_worker,
            name="cw-store",
            threads=threads,
            worker_init=worker_init,
        )
        self._names: set[str] = set()
        self._streams: list[StreamBuild] = []
        self._reading = 0
        self._finished = False
        self._stats = WriteStats()

    @property
    def stats(self) -> WriteStats:
        return self._stats

    def add_stream(self, name: str, source: PageSource, lane: str, size: int | None = None) -> None:
        """Read all of `source` and store it as stream `name`.

        Returns when the source has been read and its `finish` has returned: it is not needed any
        more, while its last chunks are still worked on. May be called by several threads at the
        same time.

        :param lane: streams of one lane are stored next to each other.
        :param size: bytes, for a file; None for memory.
        """
        with self._monitor.reporting():
            self._monitor.check()
            stream = self._begin(name, lane, size)
            try:
                for found in read_cuts(source, self._buffers, self._params, self._sizes.read_unit):
                    self._batches.put(_Batch(stream, stream.submitted, found))
                    stream.submitted += 1
                source.finish()
            finally:
                with self._monitor.changed:
                    self._reading -= 1
            with self._monitor.changed:
                self._streams.append(stream)

    def finish(self, metadata: Mapping[str, Any]) -> ManifestRef:
        """Make everything durable, then write index and manifest. All `add_stream` have returned.

        :param metadata: a JSON object, kept in the manifest.
        """
        try:
            with self._monitor.reporting():
                self._monitor.check()
                with self._monitor.changed:
                    if self._reading or self._finished:
                        raise InternalError(what="a tree was finished while streams were added, or twice")
                    self._finished = True
                self._batches.close()
                self._crew.join()
                self._monitor.check()
                index = self._write_index(self._lanes.finish())
                return self._write_manifest(metadata, index)
        finally:
            self.close()

    def close(self) -> None:
        """Give up unless finished, and wait for the threads to end. May be called again."""
        if not self._finished:
            self._monitor.fail(StoppedError(what="the tree was given up."), reported=True)
            self._finished = True
        self._crew.join()
        self._lanes.join()

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the stages -------------------------------------------------------------------------

    def _begin(self, name: str, lane: str, size: int | None) -> StreamBuild:
        try:
            check_stream_name(name)
        except ValueError as error:
            raise InternalError(what=str(error)) from error
        with self._monitor.changed:
            if name in self._names or self._finished:
                raise InternalError(what=f'stream "{name}" was added twice, or to a finished tree')
            self._names.add(name)
            self._reading += 1
        return StreamBuild(name=name, size=size, lane=lane)

    def _chunk_worker(self) -> Callable[[_Batch], None]:
        compressor = Compressor()

        def work(batch: _Batch) -> None:
            result = self._process(batch.cut, compressor)
            self._append(batch.stream, batch.sequence, result)

        return work

    def _process(self, found: Cut, compressor: Compressor) -> Result:
        """Hash, claim and compress the chunks of one batch."""
        key = self._repository.config.key
        chunks = found.chunks()
        ids = [chunk_id(chunk, key) for chunk in chunks]
        claims = self._broker.claim(ids) if ids else ()
        frames = []
        size = dict.fromkeys(Claim, 0)
        for chunk, data, claim in zip(ids, chunks, claims, strict=True):
            size[claim] += len(data)
            if claim is Claim.YOURS:
                codec, stored = compressor.compress(data)
                frames.append(Frame(chunk, codec, len(data), stored))
        self._count(
            WriteStats(
                seen_bytes=found.nbytes,
                zero_bytes=found.zero_bytes,
                known_bytes=size[Claim.KNOWN],
                peer_bytes=size[Claim.PEER],
                new_bytes=size[Claim.YOURS],
                stored_bytes=sum(len(frame.data) for frame in frames),
                chunks=len(ids),
                new_chunks=len(frames),
            )
        )
        return Result(found, b"".join(ids), frames)

    def _append(self, stream: StreamBuild, sequence: int, result: Result) -> None:
        """Bring results into order and their frames into packs.

        `stream.appended` moves on only when a result's frames are in a pack, so one thread at a
        time finds the next one; any other leaves its result to that thread. Results wait in
        buffers of the pool, so there are never many.
        """
        with self._monitor.changed:
            stream.waiting[sequence] = result
        while True:
            with self._monitor.changed:
                following = stream.waiting.pop(stream.appended, None)
            if following is None:
                return
            self._lanes.append(stream.lane, following.frames)
            with self._monitor.changed:
                stream.cuts.append(following.cut.cuts)
                stream.ids.append(following.ids)
                stream.appended += 1
            self._buffers.give(following.cut.buffer)

    def _count(self, more: WriteStats) -> None:
        with self._monitor.changed:
            self._stats = self._stats.plus(more)
            if self._progress is not None:
                self._progress(self._stats)

    # --- the end ----------------------------------------------------------------------------

    def _write_index(self, packs: list[IndexedPack]) -> str | None:
        if not packs:
            return None
        data = encode_index(packs, self._repository.config.repository_id)
        digest = layout.content_digest(data)
        self._repository.backend.put(layout.index_name(digest), data)
        return digest

    def _write_manifest(self, metadata: Mapping[str, Any], index: str | None) -> ManifestRef:
        ids = [stream.all_ids() for stream in self._streams]
        chunks, numbers = unique_ids(np.concatenate(ids) if ids else np.zeros((0, 4), np.uint64))
        streams, at = {}, 0
        for build, own in zip(self._streams, ids, strict=True):
            extents = join_zero_extents(build.extents(numbers[at : at + len(own)]))
            streams[build.name] = Stream(name=build.name, size=build.size, extents=extents)
            at += len(own)
        data = encode_manifest(
            Manifest(metadata=metadata, streams=streams, chunks=chunks), self._repository.config.repository_id
        )
        digest = layout.content_digest(data)
        self._repository.backend.put(layout.manifest_name(digest), data)
        return ManifestRef(digest=digest, size=len(data), index=index)
