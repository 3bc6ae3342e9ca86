"""Work folders of takes and restores: on a tmpfs, private, locked by the process that uses them.

The lock ends with its holder, so that a folder left by a dead one is recognised whoever it was.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

_PARENT = Path("/dev/shm")
"""A tmpfs on every Linux; images are written to it during the pause."""
_PREFIX = "cw-snapshot."


class WorkFolder:
    """A new folder of ours, 0700."""

    def __init__(self, name: str) -> None:
        self.path = _PARENT / f"{_PREFIX}{name}"
        self.path.mkdir(mode=0o700)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def abandoned_folders() -> list[Path]:
    """Work folders whose owner has died."""
    found = []
    for path in sorted(_PARENT.glob(f"{_PREFIX}*")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(path)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
    return found
