"""One node's part of a restore, phase by phase. The barrier decides when; this does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.barrier import Phase
from cw_snapshot.coordinator.deadlines import JobSize
from cw_snapshot.coordinator.jobs import JobNotFoundError, JobRecord, JobState, JobStore, new_record
from cw_snapshot.coordinator.leftovers import recover_dead_operations
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.state import make_private
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import old_addresses
from cw_snapshot.snapshot.addresses import AddressMap
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.file_evidence import FileRecord
from cw_snapshot.snapshot.file_rules import Act, FilePolicy
from cw_snapshot.snapshot.restore import FileSink, NodeRestore
from cw_snapshot.storage.manifest import ManifestRef
from cw_snapshot.storage.reader import TreeReader
from cw_snapshot.storage.repository import Repository

Progress = Callable[[str, int, int], None]
"""Phase, bytes done, bytes in all."""


class RestoredTreeEndedError(CwError):
    """The restored tree ended as soon as it ran.

    Fix: see its log.
    """

    exit_code = ExitCode.ABORTED


class RestoreWork:
    """The restore of one tree.

    :param store: of the jobs' trees of this number on this node.
    :param folder: of the operation's record, for logs.
    """

    def __init__(
        self,
        begin: wire.Begin,
        store: JobStore,
        *,
        operation: str,
        folder: Path,
        settings: Settings,
        progress: Progress,
    ) -> None:
        self._begin = begin
        self._store = store
        self._operation = operation
        self._folder = folder
        self._settings = settings
        self._progress = progress
        restore = begin.restore
        self._record: dict[str, Any] = json.loads(restore.record or "{}")
        self._files = FilePolicy(restore.files)
        self._redirect = Path(restore.redirect_to) if restore.redirect_to else None
        self._addresses = AddressMap(restore.own_addresses, restore.peer_addresses, restore.endpoints)
        self._node: NodeRestore | None = None
        self._reader: TreeReader | None = None
        self._own: Path | None = None
        self._saved: JobRecord | None = None
        self._log = Path()
        self._table = old_addresses.table_name(begin.job)
        self._translated = False
        self._before: JobRecord | None = None
        """The record of the incarnation that was here before, once it has been replaced."""
        self.stopped_since: float | None = None
        """CLOCK_MONOTONIC at which the tree was rebuilt; None before, and when it is complete."""

    def do(self, phase: Phase) -> dict[str, Any]:
        """Do one phase. Returns what the coordinator should know of it."""
        work: dict[Phase, Callable[[], dict[str, Any]]] = {
            Phase.PLAN: self._plan,
            Phase.FETCH: self._fetch,
            Phase.SKELETON: self._skeleton,
            Phase.PAGES: self._pages,
            Phase.GO: self._go,
            Phase.COMPLETE: self._complete,
        }
        return work[phase]()

    @property
    def _restoring(self) -> tuple[NodeRestore, TreeReader]:
        assert self._node is not None and self._reader is not None, "PLAN comes first"
        return self._node, self._reader

    def _plan(self) -> dict[str, Any]:
        recover_dead_operations()
        restore = self._begin.restore
        repository = Repository.open(self._begin.repository)
        reader = TreeReader(repository, ManifestRef(restore.manifest, restore.manifest_size, None))
        if restore.plan_only:
            log, status = Path(self._record.get("log", "/dev/null")), Path("/dev/null")
        else:
            _, own = self._store.next_incarnation(self._begin.job, restore.incarnation)
            log, status = Path(self._record.get("log") or own / "output.log"), own / "status.json"
            self._own = own
        self._log = log
        node = NodeRestore(
            reader.metadata,
            criu=find_criu(),
            name=self._operation,
            limits=deadlines.restore_limits(JobSize(len(reader.metadata["processes"]), 0)),
            log=log,
            status=status,
            log_level=self._settings.criu_log_level,
            guard_log=self._folder / "guard.log",
            addresses=self._addresses,
        )
        self._node, self._reader = node, reader
        findings, decisions = node.plan(self._files, self._redirect)
        reader.check()  # before a file of the job is changed
        return {
            "findings": [finding.to_json() for finding in findings],
            "files": [
                {"path": d.record.path, "act": d.act.value, "why": d.why}
                for d in decisions
                if d.act is not Act.USE
            ],
        }

    def _fetch(self) -> dict[str, Any]:
        node, reader = self._restoring
        make_private(self._log.parent)
        sizes = {name: stream.size for name, stream in reader.streams.items() if stream.size is not None}
        reader.pour(node.image_sinks(sizes), threads=self._settings.threads)

        def pour(record: FileRecord, target: Path) -> None:
            sink = FileSink(target, sizes[record.carried])
            try:
                reader.pour({record.carried: sink}, threads=self._settings.threads)
            finally:
                sink.close()

        node.prepare(pour, self._redirect, self._begin.restore.snapshot)
        return {}

    def _skeleton(self) -> dict[str, Any]:
        node, _ = self._restoring
        node.skeleton()
        self.stopped_since = time.monotonic()
        return {}

    def _pages(self) -> dict[str, Any]:
        node, reader = self._restoring
        node.unlock()  # every tree has its sockets
        poured = 0

        def progress(done: int, total: int) -> None:
            nonlocal poured
            poured = total
            self._progress("pages", done, total)

        reader.pour(node.sinks(), threads=self._settings.threads, progress=progress)
        self.stopped_since = time.monotonic()  # the pour has taken what it takes
        return {"poured_bytes": poured}

    def _go(self) -> dict[str, Any]:
        node, _ = self._restoring
        self._translated = True
        old_addresses.install(self._table, self._begin.restore.former_addresses)
        # First: whoever asks for the job from now on must learn of this tree.
        self._save_record()
        return {"pid": node.go()}

    def _save_record(self) -> None:
        node, reader = self._restoring
        assert node.launched is not None and self._own is not None
        with suppress(JobNotFoundError):
            self._before = self._store.find(self._begin.job).record
        first = reader.metadata["processes"][0]
        record = new_record(
            self._begin.job,
            self._begin.restore.incarnation,
            node.launched,
            root=reader.metadata["root"],
            command=self._record.get("command") or first.get("cmdline", []),
            folder=self._record.get("folder", ""),
            log=self._log,
            status=self._own / "status.json",
            user=self._record.get("user", ""),
            labels=self._record.get("labels"),
            restored_from=self._begin.restore.snapshot,
        )
        self._store.save(record)
        self._saved = record

    def _complete(self) -> dict[str, Any]:
        """Every tree was let go: from now on this one stays when we die."""
        node, record = self._node, self._saved
        assert node is not None and record is not None, "GO comes first"
        if self._store.find(record.id).state is not JobState.RUNNING:
            raise RestoredTreeEndedError(evidence=[f"pid {record.init}", f"log {record.log}"])
        node.end()
        self.stopped_since = None
        return {"notes": node.notes, "log": record.log, "init": record.init}

    def finish(self, *, durable: bool) -> None:
        """After the last phase there is nothing more to do."""

    def undo(self, error: BaseException | None = None) -> None:
        """End the half-made tree."""
        self.stopped_since = None
        if self._node is not None:
            with suppress(OSError):
                log = self._node.log
                if log is not None and log.exists():
                    (self._folder / log.name).write_bytes(log.read_bytes())
            self._node.abort()
        if self._translated:
            old_addresses.remove(self._table)
        if self._before is not None:
            self._store.save(self._before)
        elif self._saved is not None:
            self._store.forget(self._begin.job)
        if self._own is not None:
            with suppress(OSError):
                (self._own / "status.json").unlink(missing_ok=True)
                self._own.rmdir()
