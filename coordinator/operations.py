"""Records of operations: who, when, what, outcome, and the logs of those that failed."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import now_text
from cw_snapshot.coordinator.state import make_private, write_json
from cw_snapshot.errors import CwError


@dataclass(slots=True)
class Operation:
    """One take or restore under way."""

    id: str
    kind: str
    job: str
    folder: Path
    """Kept: the record, and logs when it failed."""
    result: dict[str, Any] = field(default_factory=dict)
    unwritten: str = ""
    """Why the record of the outcome could not be written; empty when it was."""

    def keep_log(self, log: Path | None, error: BaseException) -> None:
        """Save criu's log from the work folder, if there is one yet, and name it in the error.

        Raises nothing: what follows lets the job go on.
        """
        try:
            if log is None or not log.exists():
                return
            told = f"criu's log: {shutil.copy(log, self.folder / log.name)}"
        except OSError as failure:
            told = f"criu's log could not be kept: {failure}"
        if isinstance(error, CwError):
            error.evidence.append(told)


_KEPT = 1000


def _forget_old(folder: Path) -> None:
    """Keep the newest records; their names begin with their time."""
    for old in sorted(folder.iterdir())[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def new_name(kind: str) -> str:
    """Name of a new operation: its time, then chance."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}-{secrets.token_hex(4)}"


@contextmanager
def operation(
    state_dir: Path, kind: str, job: str, details: Mapping[str, Any], *, name: str | None = None
) -> Iterator[Operation]:
    """Record an operation from its beginning to its outcome.

    :param name: of an operation that begins somewhere else; None for a new one.
    """
    name = name or new_name(kind)
    folder = make_private(state_dir / "operations" / name)
    op = Operation(name, kind, job, folder)
    record: dict[str, Any] = {
        "schema": "cw-snapshot/operation/1",
        "id": name,
        "kind": kind,
        "job": job,
        "begun": now_text(),
        "outcome": "running",
        **details,
    }
    write_json(folder / "operation.json", record)
    _forget_old(folder.parent)
    try:
        yield op
    except BaseException as error:
        record["outcome"] = error.code if isinstance(error, CwError) else type(error).__name__
        record["message"] = str(error)
        _write_outcome(op, record)
        if op.unwritten and isinstance(error, CwError):
            error.evidence.append(op.unwritten)
        raise
    record["outcome"] = "ok"
    _write_outcome(op, record)


def _write_outcome(op: Operation, record: dict[str, Any]) -> None:
    """The record at the end; what was done counts, whether or not it can be written down."""
    record["ended"] = now_text()
    record["result"] = op.result
    path = op.folder / "operation.json"
    try:
        write_json(path, record)
    except OSError as error:
        op.unwritten = f"the outcome could not be recorded in {path}: {error.strerror}"
