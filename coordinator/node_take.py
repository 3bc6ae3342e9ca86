"""One node's part of a take, phase by phase. The barrier decides when; this does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.barrier import Phase
from cw_snapshot.coordinator.deadlines import JobSize
from cw_snapshot.coordinator.expectation import Expectation
from cw_snapshot.coordinator.jobs import JobRecord, kill_root
from cw_snapshot.coordinator.leftovers import recover_dead_operations
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.storing import store_tree, tree_writer
from cw_snapshot.coordinator.take import refusals_that_stand
from cw_snapshot.errors import CwError
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot import tree as trees
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.preflight import PreflightRefusedError
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.storage.interfaces import ChunkBroker
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter

Progress = Callable[[str, int, int], None]
"""Phase, bytes done, bytes in all."""


class TakeWork:
    """The take of one tree.

    :param root: pid of the tree's root as we see it.
    :param record: of the job, if we started it.
    :param folder: of the operation's record, for logs.
    """

    def __init__(
        self,
        job: str,
        root: int,
        record: JobRecord | None,
        *,
        operation: str,
        folder: Path,
        repository: str,
        settings: Settings,
        broker: ChunkBroker,
        progress: Progress,
        stop: bool = False,
        force: bool = False,
    ) -> None:
        self._job = job
        self._root = root
        self._record = record
        self._operation = operation
        self._folder = folder
        self._url = repository
        self._settings = settings
        self._broker = broker
        self._progress = progress
        self._stop = stop
        self._force = force
        self._node: NodeTake | None = None
        self._writer: TreeWriter | None = None
        self.stopped_since: float | None = None
        """CLOCK_MONOTONIC of the stop; None while the job runs."""

    def do(self, phase: Phase) -> dict[str, Any]:
        """Do one phase. Returns what the coordinator should know of it."""
        work: dict[Phase, Callable[[], dict[str, Any]]] = {
            Phase.OPEN: self._open,
            Phase.STOP: self._stop_tree,
            Phase.SKELETON: self._skeleton,
            Phase.SHADOW: self._shadow,
            Phase.GO: self._go,
            Phase.PAGES: self._pages,
        }
        return work[phase]()

    @property
    def _taking(self) -> NodeTake:
        assert self._node is not None, "OPEN comes first"
        return self._node

    def _open(self) -> dict[str, Any]:
        recover_dead_operations()
        tree = trees.find(self._root)
        predicted = Expectation(self._job, self._settings).of(tree)
        node = NodeTake(
            tree,
            criu=find_criu(),
            name=self._operation,
            limits=deadlines.take_limits(
                JobSize(predicted.facts.processes, predicted.facts.private_bytes),
                self._settings.max_pause,
                stop=self._stop,
            ),
            log_level=self._settings.criu_log_level,
            guard_log=self._folder / "guard.log",
        )
        findings = node.preflight(predicted.facts)
        if bad := refusals_that_stand(findings, force=self._force):
            raise PreflightRefusedError(bad)
        # Here, where it costs the job nothing: a store that does not answer, or too little memory.
        self._writer = tree_writer(
            Repository.open(self._url),
            self._broker,
            self._settings,
            lambda stats: self._progress("pages", stats.seen_bytes, self._total),
        )
        self._node = node
        node.open()
        root = procfs.read_stat(self._root)
        return {
            "predicted": predicted.to_json(),
            "findings": [finding.to_json() for finding in findings],
            "processes": len(tree.living),
            "record": asdict(self._record) if self._record else None,
            "original": {"pid": self._root, "starttime": root.starttime, "boot": procfs.boot_id()},
        }

    _total = 0

    def _stop_tree(self) -> dict[str, Any]:
        self._taking.stop()
        self.stopped_since = self._taking.times.begin
        return {}

    def _skeleton(self) -> dict[str, Any]:
        self._taking.skeleton()
        return {}

    def _shadow(self) -> dict[str, Any]:
        self._taking.shadow()
        return {"without_shadow": self._taking.without_shadow}

    def _go(self) -> dict[str, Any]:
        if not self._stop:
            self._taking.go()
        self.stopped_since = None
        return {"times": self._taking.times.to_json()}

    def _pages(self) -> dict[str, Any]:
        node, writer = self._taking, self._writer
        assert writer is not None
        begun = time.monotonic()
        manifest = store_tree(node, writer, self._settings.threads, self._set_total)
        return {
            "manifest": manifest.digest,
            "size": manifest.size,
            "index": manifest.index,
            "stats": asdict(writer.stats),
            "extra_memory_bytes": node.extra_memory_bytes,
            "seconds": round(time.monotonic() - begun, 3),
        }

    def _set_total(self, total: int) -> None:
        self._total = total

    def finish(self, *, durable: bool) -> None:
        """After the last phase: nothing of the take is left. With `stop` and a durable snapshot the job
        is ended, else it goes on."""
        node = self._taking
        if self._stop and durable:
            if self._record is not None:
                kill_root(self._record)
            trees.kill(node.tree.members)
            node.end()
        elif self._stop:
            node.abort()
        else:
            node.end()
        self._close_writer()

    def undo(self, error: BaseException | None = None) -> None:
        """Give up: the job runs on, nothing is left. Raises what makes that untrue."""
        self.stopped_since = None
        if self._node is not None:
            self._keep_log(self._node.log, error)
            self._node.abort()
        self._close_writer()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _keep_log(self, log: Path | None, error: BaseException | None) -> None:
        """criu's log into the record of the operation; raises nothing: the job waits."""
        with suppress(OSError):
            if log is not None and log.exists():
                kept = self._folder / log.name
                kept.write_bytes(log.read_bytes())
                kept.chmod(0o600)
                if isinstance(error, CwError):
                    error.evidence.append(f"criu's log: {kept}")
