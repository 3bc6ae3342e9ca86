"""Numbers of operations: each is larger than every earlier one on the same job."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from cw_snapshot.coordinator.state import make_private, read_json, write_json


class Epochs:
    """The newest operation of each job, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def newest(self, job: str) -> int:
        """0 when there was none."""
        return int((read_json(self._path) or {}).get(job, 0))

    def next(self, job: str) -> int:
        """The number of a new operation: larger than all before, also than those of another coordinator
        with a state directory of its own, as long as clocks are right."""
        epoch = max(self.newest(job) + 1, time.time_ns() // 1_000_000)
        self.begin(job, epoch)
        return epoch

    def begin(self, job: str, epoch: int) -> bool:
        """Remember that an operation begins; false when a newer one, or this one, has begun before."""
        with self._lock:
            known = read_json(self._path) or {}
            if epoch <= int(known.get(job, 0)):
                return False
            make_private(self._path.parent)
            write_json(self._path, {**known, job: epoch})
            return True
