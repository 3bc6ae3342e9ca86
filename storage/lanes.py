"""Packs under construction, one per lane, and their way to the store.

A lane keeps chunks that will be read together in the same packs: one per rank, one for small
files. A full pack is handed to the uploaders; its buffer comes back when it is durable. When no
buffer is free and none is on its way, the fullest open pack of another lane is sealed early:
more lanes than buffers make smaller packs, never a standstill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.batches import Buffer
from cw_snapshot.storage.index import IndexedPack
from cw_snapshot.storage.layout import content_digest, pack_name
from cw_snapshot.storage.packs import ENTRY, Frame, PackBuilder
from cw_snapshot.storage.pipeline import Channel, Crew, Monitor, Pool


class _OpenPack:
    def __init__(self, buffer: Buffer, target: int, max_entries: int) -> None:
        self.buffer = buffer
        self.builder = PackBuilder(buffer.data, target=target, max_entries=max_entries)


class LanePacks:
    """Takes frames lane by lane, makes packs of them and stores these. Thread-safe."""

    def __init__(
        self,
        monitor: Monitor,
        backend: Backend,
        buffers: Pool[Buffer],
        *,
        target: int,
        max_entries: int,
        uploaders: int,
        worker_init: Callable[[], None] | None = None,
    ) -> None:
        """Packs are sealed at `target` bytes or `max_entries` chunks; `uploaders` threads store them."""
        self._monitor = monitor
        self._backend = backend
        self._buffers = buffers
        self._target = target
        self._max_entries = max_entries
        self._open: dict[str, _OpenPack] = {}
        self._stored: list[IndexedPack] = []
        self._sealed: Channel[_OpenPack] = Channel(monitor)
        self._crew = Crew(
            monitor,
            self._sealed,
            lambda: self._upload,
            name="cw-upload",
            threads=uploaders,
            worker_init=worker_init,
        )

    def append(self, lane: str, frames: Iterable[Frame]) -> None:
        """Put `frames` into the lane's packs, in order. Waits while all buffers are being uploaded.

        Frames that lie in a reused buffer are copied when this returns.
        """
        with self._monitor.changed:
            for frame in frames:
                pack = self._pack_of(lane)
                pack.builder.append(frame)
                if pack.builder.full:
                    self._seal(lane)

    def finish(self) -> list[IndexedPack]:
        """Seal what is open and wait until everything is durable; all packs that were stored."""
        with self._monitor.changed:
            for lane in list(self._open):
                self._seal(lane)
            self._sealed.close()
        self._crew.join()
        self._monitor.check()
        return self._stored

    def join(self) -> None:
        """Wait for the threads to end, after `finish` or a failure."""
        self._crew.join()

    def _pack_of(self, lane: str) -> _OpenPack:
        """The lane's open pack, or a new one. The caller holds the lock, which is let go in waiting."""
        while lane not in self._open:
            if self._buffers.available:
                self._open[lane] = _OpenPack(self._buffers.take(), self._target, self._max_entries)
            elif self._nothing_on_its_way():
                self._seal(max(self._open, key=lambda other: self._open[other].builder.size))
            else:
                self._monitor.wait(
                    lambda: lane in self._open or self._buffers.available or self._nothing_on_its_way()
                )
        return self._open[lane]

    def _nothing_on_its_way(self) -> bool:
        return self._buffers.taken == len(self._open)

    def _seal(self, lane: str) -> None:
        self._sealed.put(self._open.pop(lane))

    def _upload(self, pack: _OpenPack) -> None:
        data = pack.builder.seal()
        digest = content_digest(data)
        self._backend.put(pack_name(digest), data)
        entries = np.frombuffer(pack.builder.footer, dtype=ENTRY)
        with self._monitor.changed:
            self._stored.append(IndexedPack(digest=digest, size=len(data), entries=entries))
        self._buffers.give(pack.buffer)
