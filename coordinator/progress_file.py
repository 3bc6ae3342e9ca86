"""How far an operation is, kept in a file that others may look at while it runs."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import now_text

EVERY = timedelta(seconds=1)
"""At most so often it is written."""


class ProgressFile:
    """Phase and bytes of each node. Methods are cheap and raise nothing: the job waits.

    The first change is written at once, the others by a thread, at most one each `every`; the newest is
    always written in the end. Replaced as a whole, and not forced to the disk: after a power cut nobody
    needs it.
    """

    def __init__(self, path: Path, every: timedelta = EVERY) -> None:
        self._path = path
        self._every = every.total_seconds()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._first = True
        self._nodes: dict[str, dict[str, int]] = {}
        self._begun = ""
        self.phase_name = ""

    def phase(self, name: str) -> None:
        """A phase begins, on all nodes."""
        with self._lock:
            self.phase_name, self._begun = name, now_text()
            self._nodes = {}
        if self._first:
            # No thread yet: what follows on one node measures how the machine forks.
            self._first = False
            self._write()
            return
        self._note()

    def done(self, node: str, done: int, total: int) -> None:
        """A node has done so many bytes of a phase."""
        with self._lock:
            self._nodes[node] = {"done_bytes": done, "total_bytes": total}
        self._note()

    def _note(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            with suppress(RuntimeError):  # no more threads
                self._thread.start()
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            if self._closed.is_set():
                return
            self._changed.clear()
            self._write()
            self._closed.wait(self._every)

    def _write(self) -> None:
        with self._lock:
            document: dict[str, Any] = {
                "schema": "cw-snapshot/operation-progress/1",
                "phase": self.phase_name,
                "phase_begun": self._begun,
                "written": now_text(),
                "nodes": dict(self._nodes),
            }
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(document, file, indent=1)
            temporary.replace(self._path)
        except OSError:  # a full disk must not end a take
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def close(self, *, remove: bool) -> None:
        """The operation has ended.

        :param remove: the file too: its record tells all.
        """
        self._closed.set()
        self._changed.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        if remove:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
