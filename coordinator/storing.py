"""Bringing what a node has to store into the repository, after the pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cw_snapshot.coordinator.priority import yield_to_job
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.errors import CwError
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.shadow_pages import Stream
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.storage.interfaces import ChunkBroker
from cw_snapshot.storage.manifest import ManifestRef
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter, WriteStats

_MEMORY_PARTS = 4
"""One part in so many of the available memory is for buffers ..."""
_LEAST_MEMORY = 512 << 20
"""... but no less than this."""


def tree_writer(
    repository: Repository, broker: ChunkBroker, settings: Settings, progress: Callable[[WriteStats], None]
) -> TreeWriter:
    """A writer for one tree, whose threads take only what the job leaves."""
    usual = max(procfs.meminfo()["MemAvailable"] // _MEMORY_PARTS, _LEAST_MEMORY)
    return TreeWriter(
        repository,
        broker,
        threads=settings.threads,
        memory=settings.limit_memory or usual,
        progress=progress,
        worker_init=yield_to_job,
    )


def store_tree(node: NodeTake, writer: TreeWriter, threads: int, total: Callable[[int], None]) -> ManifestRef:
    """Store everything of a node, and its manifest.

    :param total: told the bytes to store, before the first is.
    """
    try:
        streams = node.streams()
        total(sum(size for stream in streams for _, size in stream.source.runs()))
        _add_all(writer, streams, threads)
        return writer.finish(node.metadata())
    except (CwError, OSError) as error:
        if cause := node.lost_to(error):
            raise cause from error
        raise


def _add_all(writer: TreeWriter, streams: Sequence[Stream], threads: int) -> None:
    def add(stream: Stream) -> None:
        writer.add_stream(stream.name, stream.source, stream.lane, stream.size)

    with ThreadPoolExecutor(threads, "read", initializer=yield_to_job) as pool:
        futures = [pool.submit(add, stream) for stream in streams]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            writer.close()
            raise
