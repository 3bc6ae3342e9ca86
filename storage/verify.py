"""Verifying a snapshot: is everything there, and are its bytes what they were?

Problems are collected, not raised, so that one run tells all that is wrong. Errors of the store
itself (it does not answer, it refuses) are raised: they say nothing about the snapshot.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cw_snapshot.errors import UsageError
from cw_snapshot.storage import layout
from cw_snapshot.storage.chunkids import id_hex
from cw_snapshot.storage.commit import Commit, SnapshotRef
from cw_snapshot.storage.errors import (
    ChunkMissingError,
    IntegrityError,
    ManifestDamagedError,
    PackDamagedError,
)
from cw_snapshot.storage.fetch import Fetcher
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.manifest import Manifest
from cw_snapshot.storage.packs import Entries, read_footer
from cw_snapshot.storage.pipeline import Monitor, run_crew
from cw_snapshot.storage.plan import (
    ChunkTable,
    Read,
    ReadLimits,
    chunk_table,
    find_wrong_length,
    plan_reads,
    select_rows,
)
from cw_snapshot.storage.reader import Meter, Progress, load_manifest
from cw_snapshot.storage.repository import Repository

T = TypeVar("T")


@dataclass(frozen=True)
class VerifyResult:
    """What a verification found."""

    ref: SnapshotRef
    problems: tuple[IntegrityError, ...]
    manifests: int
    """Manifests that are sound."""
    packs: int
    """Packs that the snapshot needs and the index knows."""
    chunks: int
    """Different chunks in them that it needs."""
    chunks_read: int
    """Of these, how many were read back, decompressed and found right."""
    bytes_read: int
    """Their bytes, decompressed."""

    @property
    def ok(self) -> bool:
        return not self.problems


def verify_snapshot(
    repository: Repository,
    ref: SnapshotRef,
    *,
    threads: int,
    share: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
    worker_init: Callable[[], None] | None = None,
    limits: ReadLimits | None = None,
) -> VerifyResult:
    """Verify commit, manifests, index, packs and chunks of `ref`.

    :param share: the part of the chunks to read back, from 0.0 (only that all is there) to 1.0.
    :param seed: which chunks a part of them is; another seed reads others.
    :param progress: called with the decompressed bytes read and those to read.
    :raises SnapshotNotFoundError: there is no such snapshot.
    :raises StoreError: the store does not answer.
    """
    if not 0.0 <= share <= 1.0:
        raise UsageError(what=f"A share of {share} is not between 0 and 1.")
    run = _Verification(repository, ref, threads, worker_init)
    commit = run.attempt(lambda: repository.read_commit(ref))
    index = run.attempt(lambda: repository.load_index(on_damage=run.report))
    if commit is not None and index is not None:
        table = run.check_manifests(commit, index)
        table = run.check_packs(table, index)
        sample = select_rows(table, _sample(len(table), share, seed))
        run.read_back(sample, index, limits or ReadLimits(), progress)
    return run.result()


def _sample(count: int, share: float, seed: int) -> NDArray[np.int64]:
    """Which of `count` rows to read, ascending."""
    size = math.ceil(count * share)
    return np.sort(np.random.default_rng(seed).permutation(count)[:size])


class _Verification:
    """The problems and counts of one run."""

    def __init__(
        self,
        repository: Repository,
        ref: SnapshotRef,
        threads: int,
        worker_init: Callable[[], None] | None,
    ) -> None:
        self._repository = repository
        self._ref = ref
        self._threads = threads
        self._worker_init = worker_init
        self._lock = threading.Lock()
        self._problems: list[IntegrityError] = []
        self._manifests = self._packs = self._chunks = self._chunks_read = self._bytes_read = 0

    def report(self, problem: IntegrityError) -> None:
        with self._lock:
            self._problems.append(problem)

    def attempt(self, step: Callable[[], T]) -> T | None:
        """The step's result, or None when it had a problem, which is then noted."""
        try:
            return step()
        except IntegrityError as problem:
            self.report(problem)
            return None

    def result(self) -> VerifyResult:
        return VerifyResult(
            ref=self._ref,
            problems=tuple(sorted(self._problems, key=lambda problem: problem.message)),
            manifests=self._manifests,
            packs=self._packs,
            chunks=self._chunks,
            chunks_read=self._chunks_read,
            bytes_read=self._bytes_read,
        )

    def check_manifests(self, commit: Commit, index: ChunkIndex) -> ChunkTable:
        """Check the manifests against the index; all chunks that they need and the index has."""
        ids = [np.zeros((0, 4), np.uint64)]
        rows = [np.zeros(0, np.int64)]
        for entry in commit.nodes:
            manifest = self.attempt(partial(load_manifest, self._repository, entry.ref))
            if manifest is None:
                continue
            name = layout.manifest_name(entry.digest)
            found = index.find(manifest.chunks)
            self._check_chunks(name, manifest, found, index)
            ids.append(manifest.chunks[found >= 0])
            rows.append(found[found >= 0])
            self._manifests += 1
        different, first = np.unique(np.concatenate(rows), return_index=True)
        table = chunk_table(np.concatenate(ids), first, different, index)
        self._chunks = len(table)
        self._packs = len(np.unique(table.pack))
        return table

    def _check_chunks(
        self, name: str, manifest: Manifest, rows: NDArray[np.int64], index: ChunkIndex
    ) -> None:
        missing = manifest.chunks[rows < 0]
        if len(missing):
            self.report(ChunkMissingError(name=name, count=len(missing), chunk=id_hex(missing[0])))
        known = np.flatnonzero(rows >= 0)
        raw = np.zeros(len(rows), dtype=np.uint32)
        raw[known] = index.locations(rows[known]).raw
        extents = [stream.extents for stream in manifest.streams.values()]
        wrong = find_wrong_length(extents, known, raw)
        if wrong is not None:
            chunk = id_hex(manifest.chunks[wrong])
            self.report(ManifestDamagedError(name=name, what=f"chunk {chunk} has another length in its pack"))

    def check_packs(self, table: ChunkTable, index: ChunkIndex) -> ChunkTable:
        """Check that the packs are there and that their footers agree; the chunks in those that are there."""
        present = []
        for pack in np.unique(table.pack).tolist():
            if index.is_lost(pack):
                self.report(self._repository.explain_lost(index.packs[pack], index.pack_sizes[pack]))
            else:
                present.append(pack)
        table = select_rows(table, np.flatnonzero(np.isin(table.pack, present)))

        def check(pack: int) -> None:
            name = layout.pack_name(index.packs[pack])
            size = index.pack_sizes[pack]
            entries = self.attempt(lambda: read_footer(self._repository.backend, name, size))
            if entries is not None and not _agrees(
                select_rows(table, np.flatnonzero(table.pack == pack)), entries
            ):
                self.report(PackDamagedError(name=name, what="its footer does not list what the index says"))

        self._crew(present, check)
        return table

    def read_back(
        self, table: ChunkTable, index: ChunkIndex, limits: ReadLimits, progress: Progress | None
    ) -> None:
        """Read, decompress and hash every chunk of `table`."""
        meter = Meter(progress, int(table.raw.sum(dtype=np.uint64)))
        backend, key = self._repository.backend, self._repository.config.key

        def read(task: Read) -> None:
            chunks = nbytes = 0
            try:
                for _, chunk in Fetcher(backend, index, table, key).chunks(task, self.report):
                    chunks += 1
                    nbytes += len(chunk)
            except IntegrityError as problem:  # the pack went away, or shrank, since it was listed
                self.report(problem)
            with self._lock:
                self._chunks_read += chunks
                self._bytes_read += nbytes
            meter.add(nbytes)

        self._crew(plan_reads(table, limits), read)

    def _crew(self, items: list[T], work: Callable[[T], None]) -> None:
        run_crew(
            Monitor(),
            items,
            lambda: work,
            name="cw-verify",
            threads=self._threads,
            worker_init=self._worker_init,
        )


def _agrees(table: ChunkTable, entries: Entries) -> bool:
    """Whether the footer's `entries` list every row of `table`, all of which are of this pack."""
    at = np.searchsorted(entries["offset"], table.offset)
    if (at >= len(entries)).any():
        return False
    found = entries[at]
    return bool(
        (found["offset"] == table.offset).all()
        and (found["stored"] == table.stored).all()
        and (found["id"] == table.ids).all()
    )
