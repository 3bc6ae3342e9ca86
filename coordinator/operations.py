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

    def keep_log(self, log: Path | None, error: BaseException) -> None:
        """Save criu's log from the work folder, if there is one yet, and name it in the error."""
        if log is not None and log.exists():
            kept = shutil.copy(log, self.folder / log.name)
            if isinstance(error, CwError):
                error.evidence.append(f"criu's log: {kept}")


_KEPT = 1000


def _forget_old(folder: Path) -> None:
    """Keep the newest records; their names begin with their time."""
    for old in sorted(folder.iterdir())[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def operation(state_dir: Path, kind: str, job: str, details: Mapping[str, Any]) -> Iterator[Operation]:
    """Record an operation from its beginning to its outcome."""
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{kind}-{secrets.token_hex(4)}"
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
        raise
    else:
        record["outcome"] = "ok"
    finally:
        record["ended"] = now_text()
        record["result"] = op.result
        write_json(folder / "operation.json", record)
