"""Work folders of takes and restores: on a tmpfs, private, locked by the process that uses them.

The lock ends with its holder, so that a folder left by a dead one is recognised whoever it was.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARENT = Path("/dev/shm")
"""A tmpfs on every Linux; images are written to it during the pause."""
_PREFIX = "cw-snapshot."

GUARD_FILE = "guard"
"""Says what is going on; without it the operation has ended."""


def work_folder_of(name: str) -> Path:
    """Where the work folder of an operation is while it is under way."""
    return PARENT / f"{_PREFIX}{name}"


class WorkFolder:
    """A new folder of ours, 0700."""

    def __init__(self, name: str) -> None:
        self.path = work_folder_of(name)
        self.path.mkdir(mode=0o700)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def remove(self) -> None:
        remove_folder(self.path)
        os.close(self._fd)


def remove_folder(path: Path) -> None:
    """Remove a work folder, the guard's file last: whoever dies in between leaves the guard its work."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != GUARD_FILE:
            entry.unlink(missing_ok=True)
    (path / GUARD_FILE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def abandoned_folders() -> list[Path]:
    """Work folders whose owner has died, and whose guard as well."""
    return [path for path in _folders() if not _in_use(path)]


def folders_in_use() -> list[Path]:
    """Work folders of takes and restores that are under way."""
    return [path for path in _folders() if _in_use(path)]


def _folders() -> list[Path]:
    return sorted(PARENT.glob(f"{_PREFIX}*"))


def _in_use(path: Path) -> bool:
    with taken_over(path) as ours:
        return not ours


@contextmanager
def taken_over(path: Path) -> Iterator[bool]:
    """Lock a work folder whose owner may have died; yields whether that worked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


@contextmanager
def entry_lock() -> Iterator[None]:
    """Held while an operation looks at the others of this node and makes its own work folder known."""
    fd = os.open(PARENT / "cw-snapshot-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
