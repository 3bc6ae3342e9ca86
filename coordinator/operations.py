"""Records of operations: who, when, what, outcome, and the logs of those that failed.

`cw-snapshot report` makes a bundle of one of them.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from cw_snapshot.coordinator.jobs import lives, now_text
from cw_snapshot.coordinator.state import StateDamagedError, make_private, read_json, write_json
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


class OperationNotFoundError(CwError):
    """There is no operation {wanted!r}{more}.

    Fix: name one by its id, a unique beginning of it, `latest`, or `latest:JOB`.
    """

    exit_code = ExitCode.NOT_FOUND


_TOLD = 5
"""Operations that are named when the one that was asked for is not there."""


def find_operation(state_dir: Path, wanted: str) -> Path:
    """The folder of an operation: by id or a unique beginning of one, `latest`, `latest:JOB`.

    :raises OperationNotFoundError: none, or several.
    """
    kept = _by_age(state_dir / "operations")
    if wanted == "latest":
        found = kept[-1:]
    elif wanted.startswith("latest:"):
        job = wanted.partition(":")[2]
        found = [folder for folder in kept if read_record(folder).get("job") == job][-1:]
    else:
        found = [folder for folder in kept if wanted and folder.name.startswith(wanted)]
        found = [folder for folder in found if folder.name == wanted] or found
    if len(found) == 1:
        return found[0]
    told = found or kept[-_TOLD:]
    more = f", but {len(found)} that begin so" if found else ""
    raise OperationNotFoundError(wanted=wanted, more=more, evidence=[folder.name for folder in told])


def _by_age(folder: Path) -> list[Path]:
    """From the oldest; within a second by their last change."""
    if not folder.is_dir():
        return []

    def age(path: Path) -> tuple[str, int]:
        return path.name[:_TIME_LENGTH], path.stat().st_mtime_ns

    return sorted(folder.iterdir(), key=age)


def read_record(folder: Path) -> dict[str, Any]:
    """The record of an operation, empty when it can't be read."""
    with suppress(StateDamagedError):
        record = read_json(folder / "operation.json")
        if isinstance(record, dict):
            return record
    return {}


def operation_of_snapshot(state_dir: Path, snapshot: str) -> dict[str, Any] | None:
    """The record of the take that made a snapshot, if it was made here and is still kept."""
    for folder in reversed(_by_age(state_dir / "operations")):
        record = read_record(folder)
        if record.get("kind") == "take" and record.get("result", {}).get("snapshot") == snapshot:
            return record
    return None


def standing(record: Mapping[str, Any]) -> str:
    """How an operation stands: its outcome, `running`, or `died` when its command ended without a word."""
    if record.get("outcome") != "running":
        return str(record.get("outcome", "unknown"))
    command = record.get("command")
    return "running" if command and lives(**command) else "died"


_TIME_LENGTH = len("20260131T235959Z")
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
        "command": {
            "pid": os.getpid(),
            "starttime": procfs.read_stat(os.getpid()).starttime,
            "boot": procfs.boot_id(),
        },
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
