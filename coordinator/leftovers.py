"""What dead runs have left on this node, and removing it.

A live operation is never touched: its work folder is locked as long as it lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.guard import recover
from cw_snapshot.snapshot.shadows import find_shadows
from cw_snapshot.snapshot.work_folder import abandoned_folders, folders_in_use

_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that should not be there."""

    what: str
    evidence: str
    remove: Callable[[], None]


def recover_dead_operations() -> None:
    """Let every job go on whose take has died together with its guard. Cheap when there is none."""
    for folder in abandoned_folders():
        recover(folder)


def find_leftovers() -> list[Leftover]:
    """Everything that dead takes and restores have left."""
    found = [
        Leftover("work folder of a dead operation", str(f), partial(recover, f)) for f in abandoned_folders()
    ]
    # A shadow that was just made has no keeper yet, and criu's tables belong to the take or restore
    # that is under way: during any, all are left alone.
    if folders_in_use():
        return found
    found += [
        Leftover("shadow without a keeper", f"pid {pid}", partial(_kill, pid))
        for pid in find_shadows()
        if _abandoned(pid)
    ]
    found += [
        Leftover("table of a dead criu, which drops packets", f"inet {name}", partial(_delete_table, name))
        for name in _criu_tables()
    ]
    return found


def _abandoned(shadow: int) -> bool:
    """A shadow in use is traced by its keeper. A process of a job may have the name of a shadow,
    but every shadow has closed all its descriptors."""
    try:
        status = procfs.status(shadow)
        if status["State"][0] in "ZX" or status["TracerPid"] != "0":
            return False
        return not procfs.descriptors(shadow)
    except (procfs.ProcessGoneError, PermissionError):
        return False


def _kill(pid: int) -> None:
    if _abandoned(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _criu_tables() -> list[str]:
    """Tables in our network namespace that criu made to lock connections."""
    try:
        done = subprocess.run(
            ["nft", "list", "tables"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = (line.split() for line in done.stdout.splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] == "inet" and row[2].startswith("CRIU-")]


def _delete_table(name: str) -> None:
    subprocess.run(["nft", "delete", "table", "inet", name], timeout=_TIMEOUT_SECONDS, check=False)
