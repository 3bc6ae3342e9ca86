"""What dead runs have left on this node, and removing it.

A live operation is never touched: its locks end with it, so what is locked is in use.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cw_snapshot.coordinator.jobs import JobState, JobStore
from cw_snapshot.coordinator.state import BusyError, exclusive
from cw_snapshot.snapshot import procfs, tree
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


def find_leftovers(store: JobStore) -> list[Leftover]:
    """Everything that dead takes and restores have left."""
    found = [
        Leftover("work folder of a dead operation", str(f), partial(recover, f)) for f in abandoned_folders()
    ]
    # A shadow that was just made has no keeper yet: while any take is under way, all are left alone.
    if not folders_in_use():
        found += [
            Leftover("shadow without a keeper", f"pid {pid}", partial(_kill, pid))
            for pid in find_shadows()
            if _abandoned(pid)
        ]
    found += [
        Leftover("table of a dead criu, which drops packets", f"inet {name}", partial(_delete_table, name))
        for name in _criu_tables()
        if not _criu_runs()
    ]
    found += _stopped_jobs(store)
    return found


def _abandoned(shadow: int) -> bool:
    """A shadow in use is traced by its keeper."""
    try:
        return procfs.status(shadow)["TracerPid"] == "0"
    except procfs.ProcessGoneError:
        return False


def _kill(pid: int) -> None:
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


def _criu_runs() -> bool:
    for entry in os.listdir(procfs.PROC):
        if entry.isdigit():
            with suppress(procfs.ProcessGoneError):
                if procfs.read_stat(int(entry)).comm == "criu":
                    return True
    return False


def _stopped_jobs(store: JobStore) -> list[Leftover]:
    """Jobs that a take has stopped and, being dead, can't let go."""
    found = []
    for view in store.all():
        if view.state is not JobState.RUNNING:
            continue
        try:
            with exclusive(store.lock_path(view.record.id), view.record.id):
                members = tree.find(view.record.root_pid).living
                stopped = all(procfs.read_stat(m.pid).state == "T" for m in members)
        except (BusyError, procfs.ProcessGoneError, tree.TreeGoneError):
            continue
        if stopped:
            what = f"job {view.record.id} is stopped and no operation is under way"
            found.append(Leftover(what, f"pid {view.record.root_pid}", partial(tree.go, members)))
    return found
