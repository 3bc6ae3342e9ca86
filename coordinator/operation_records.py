"""Reading the records of operations: finding one, how it stands, and which are kept.

Form of the records: docs/internals/operations.md.
"""

from __future__ import annotations

import platform
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import lives
from cw_snapshot.coordinator.state import StateDamagedError, read_json
from cw_snapshot.errors import CwError, ExitCode

RECORD = "operation.json"
PROGRESS = "progress.json"
"""How far it is, beside the record while it runs. Not in it: a record is replaced with care, twice; this
each second, and may be lost."""

RUNNING, DIED, ELSEWHERE = "running", "died", "elsewhere"
_TIME = "%Y%m%dT%H%M%SZ"
_TIME_LENGTH = len("20260131T235959Z")
_NAME = re.compile(r"\d{8}T\d{6}Z-[a-z]+-[0-9a-f]{8}(\.\d+)?")
_TOLD = 5
"""Operations that are named when the one that was asked for is not there."""
_BEGINS = timedelta(minutes=1)
"""A folder without a record that is younger is of an operation that is just beginning."""


class OperationNotFoundError(CwError):
    """There is no operation {wanted!r}{more}.

    Fix: name one by its id, a unique beginning of it, `latest`, or `latest:JOB`.
    """

    exit_code = ExitCode.NOT_FOUND


def folder_of(state_dir: Path) -> Path:
    """Where the records are, one folder each."""
    return state_dir / "operations"


def host() -> str:
    """The name of this machine, as records have it."""
    return platform.node() or "unknown"


def is_part(name: str) -> bool:
    """Whether it is the record of one node's part of an operation: OP.TREE."""
    return "." in name


def find_operation(state_dir: Path, wanted: str) -> Path:
    """The folder of an operation: by id or a unique beginning of one, `latest`, `latest:JOB`.

    A node's part of an operation is found where no whole one fits.

    :raises OperationNotFoundError: none, or several.
    """
    kept = by_age(state_dir)
    whole = [folder for folder in kept if not is_part(folder.name)]
    found = _fitting(whole, wanted) or _fitting(kept, wanted)
    if len(found) == 1:
        return found[0]
    told = found or (whole or kept)[-_TOLD:]
    more = f", but {len(found)} that begin so" if found else ""
    raise OperationNotFoundError(wanted=wanted, more=more, evidence=[folder.name for folder in told])


def _fitting(kept: list[Path], wanted: str) -> list[Path]:
    if wanted == "latest":
        return kept[-1:]
    if wanted.startswith("latest:"):
        job = wanted.partition(":")[2]
        return [folder for folder in kept if read_record(folder).get("job") == job][-1:]
    found = [folder for folder in kept if wanted and folder.name.startswith(wanted)]
    return [folder for folder in found if folder.name == wanted] or found


def by_age(state_dir: Path) -> list[Path]:
    """All records, from the oldest; within a second by their last change."""
    folder = folder_of(state_dir)
    if not folder.is_dir():
        return []

    def age(path: Path) -> tuple[str, int]:
        try:
            return path.name[:_TIME_LENGTH], path.stat().st_mtime_ns
        except FileNotFoundError:  # it was just deleted
            return path.name[:_TIME_LENGTH], 0

    return sorted(folder.iterdir(), key=age)


def read_record(folder: Path) -> dict[str, Any]:
    """The record of an operation, empty when it can't be read."""
    return _read(folder / RECORD)


def read_progress(folder: Path) -> dict[str, Any]:
    """How far an operation is that runs, or was when its command died; empty when it is not known."""
    return _read(folder / PROGRESS)


def _read(path: Path) -> dict[str, Any]:
    with suppress(StateDamagedError):
        document = read_json(path)
        if isinstance(document, dict):
            return document
    return {}


def operation_of_snapshot(state_dir: Path, snapshot: str) -> dict[str, Any] | None:
    """The record of the take that made a snapshot, if it was made here and is still kept."""
    for folder in reversed(by_age(state_dir)):
        record = read_record(folder)
        if record.get("kind") == "take" and record.get("result", {}).get("snapshot") == snapshot:
            return record
    return None


def standing(record: Mapping[str, Any]) -> str:
    """How an operation stands: its outcome, `running`, `died` when its command ended without a word, or
    `elsewhere` when that runs, or ran, on another machine."""
    if record.get("outcome") != RUNNING:
        return str(record.get("outcome", "unknown"))
    command = record.get("command")
    if command and lives(**command):
        return RUNNING
    there = record.get("who", {}).get("host")
    return ELSEWHERE if there and there != host() else DIED


def to_forget(
    names: Sequence[str], now: datetime, most: int, longest: timedelta, keep: Callable[[str], bool]
) -> list[str]:
    """Which records are deleted: all but the newest `most`, and those older than `longest`.

    :param names: of all records; what is not named like one is nobody's business.
    :param keep: of one that would be deleted: whether it is kept all the same.
    """
    ours = sorted(name for name in names if _NAME.fullmatch(name))
    oldest = f"{now.astimezone(UTC) - longest:{_TIME}}"
    surplus = len(ours) - most
    old = [name for at, name in enumerate(ours) if at < surplus or name[:_TIME_LENGTH] < oldest]
    return [name for name in old if not keep(name)]


def forget_old(state_dir: Path, most: int, longest: timedelta) -> None:
    """Delete old records; never that of an operation that runs. Best effort."""
    folder = folder_of(state_dir)

    def runs(name: str) -> bool:
        record = read_record(folder / name)
        if record:
            return standing(record) in (RUNNING, ELSEWHERE)
        try:
            return time.time() - (folder / name).stat().st_mtime < _BEGINS.total_seconds()
        except OSError:
            return False

    with suppress(OSError):
        names = [path.name for path in folder.iterdir()]
        for name in to_forget(names, datetime.now(UTC), most, longest, runs):
            shutil.rmtree(folder / name, ignore_errors=True)


def summary(folder: Path) -> dict[str, Any]:
    """An operation as `status --json` tells of it: the record without its result, and how far it is."""
    record = read_record(folder)
    stands = standing(record)
    at = read_progress(folder)
    shown = {key: value for key, value in record.items() if key not in ("schema", "settings", "result")}
    return {
        "id": folder.name,
        "kind": "unknown",
        "job": "",
        "nodes": [],
        "who": {},
        "begun": "",
        "ended": None,
        "exit_code": None,
        "message": None,
        **shown,
        "standing": stands,
        "phase": record.get("phase") or at.get("phase", ""),
        "phase_begun": at.get("phase_begun") if stands in (RUNNING, ELSEWHERE) else None,
        "progress": at.get("nodes", {}),
        "snapshot": record.get("result", {}).get("snapshot") or record.get("snapshot") or None,
    }
