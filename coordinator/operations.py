"""Recording an operation while it happens: who, when, what, how far, outcome, and logs when it failed.

Reading the records: :mod:`operation_records`. Their form: docs/internals/operations.md.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from cw_snapshot.coordinator.jobs import now_text
from cw_snapshot.coordinator.operation_records import PROGRESS, RECORD, RUNNING, folder_of, forget_old, host
from cw_snapshot.coordinator.progress_file import ProgressFile
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.state import make_private, write_json
from cw_snapshot.coordinator.who import who
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs


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
    node: str = field(default_factory=host)
    """Of an operation on one node."""
    _progress: ProgressFile = field(init=False)

    def __post_init__(self) -> None:
        self._progress = ProgressFile(self.folder / PROGRESS)

    def phase(self, name: str) -> None:
        """A phase begins. Told to whoever looks at the record; raises nothing, and is quick."""
        self._progress.phase(name)

    def progress(self, done: int, total: int, node: str | None = None) -> None:
        """So many bytes of a phase are done, on a node."""
        self._progress.done(node or self.node, done, total)

    def keep_log(self, log: Path | None, error: BaseException) -> None:
        """Save criu's log from the work folder, if there is one yet, and name it in the error.

        Raises nothing: what follows lets the job go on.
        """
        try:
            if log is None:
                return
            # The folder belongs to the job's user where criu runs as that one: no link of his is followed.
            with open_log(log) as source, (self.folder / log.name).open("wb") as target:
                shutil.copyfileobj(source, target)
            told = f"criu's log: {self.folder / log.name}"
        except FileNotFoundError:
            return
        except OSError as failure:
            told = f"criu's log could not be kept: {failure}"
        if isinstance(error, CwError):
            error.evidence.append(told)


def open_log(path: Path) -> BinaryIO:
    """Open a log that its writer may have replaced by anything.

    :raises OSError: it is no plain file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return os.fdopen(fd, "rb")


def new_name(kind: str) -> str:
    """Name of a new operation: its time, then chance."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}-{secrets.token_hex(4)}"


@contextmanager
def operation(
    settings: Settings,
    kind: str,
    job: str,
    details: Mapping[str, Any],
    *,
    nodes: Sequence[str] | None = None,
    name: str | None = None,
) -> Iterator[Operation]:
    """Record an operation from its beginning to its outcome.

    :param details: what was asked for: `options` of the command, and what else belongs to it.
    :param nodes: on which it is; None for this one.
    :param name: of an operation that begins somewhere else; None for a new one.
    """
    name = name or new_name(kind)
    folder = make_private(folder_of(settings.state_dir) / name)
    op = Operation(name, kind, job, folder)
    record: dict[str, Any] = {
        "schema": "cw-snapshot/operation/1",
        "id": name,
        "kind": kind,
        "job": job,
        "nodes": [op.node] if nodes is None else list(nodes),
        "who": who(),
        "begun": now_text(),
        "outcome": RUNNING,
        "command": {
            "pid": os.getpid(),
            "starttime": procfs.read_stat(os.getpid()).starttime,
            "boot": procfs.boot_id(),
        },
        **details,
    }
    write_json(folder / RECORD, record)
    forget_old(settings.state_dir, settings.keep_operations, settings.keep_operations_for)
    try:
        yield op
    except BaseException as error:
        record["outcome"] = error.code if isinstance(error, CwError) else type(error).__name__
        record["exit_code"] = _exit_code(error)
        record["message"] = error.message if isinstance(error, CwError) else str(error)
        record["evidence"] = error.evidence if isinstance(error, CwError) else []
        record["fix"] = error.fix if isinstance(error, CwError) else ""
        _write_outcome(op, record)
        if op.unwritten and isinstance(error, CwError):
            error.evidence.append(op.unwritten)
        raise
    record["outcome"] = "ok"
    record["exit_code"] = int(ExitCode.OK)
    _write_outcome(op, record)


def _exit_code(error: BaseException) -> int:
    """With which the command ends."""
    if isinstance(error, CwError):
        return int(error.exit_code)
    return int(ExitCode.ABORTED if isinstance(error, KeyboardInterrupt) else ExitCode.INTERNAL)


def _write_outcome(op: Operation, record: dict[str, Any]) -> None:
    """The record at the end; what was done counts, whether or not it can be written down."""
    record["ended"] = now_text()
    record["phase"] = op._progress.phase_name
    record["result"] = op.result
    path = op.folder / RECORD
    try:
        write_json(path, record)
    except OSError as error:
        op.unwritten = f"the outcome could not be recorded in {path}: {error.strerror}"
    op._progress.close(remove=not op.unwritten)
