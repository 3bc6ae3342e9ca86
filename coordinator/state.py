"""The state directory: JSON documents that are replaced atomically, and locks that end with their
holder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode


class BusyError(CwError):
    """Another operation on job {job} is under way.

    Fix: wait for it; a lock ends with the process that holds it.
    """

    exit_code = ExitCode.REFUSED


class NotPermittedError(CwError):
    """cw-snapshot must run as root.

    Fix: run it with sudo; the snapshots of a job are as secret as its memory.
    """

    exit_code = ExitCode.NOT_PERMITTED


class NoStateDirError(CwError):
    """The state directory {path} can't be used: {why}.

    Fix: give another with --state-dir or CW_SNAPSHOT_STATE_DIR.
    """

    exit_code = ExitCode.USAGE


class StateDamagedError(CwError):
    """{path} can't be read: {why}.

    Fix: move it aside; a running job can then still be taken with `take --pid`.
    """

    exit_code = ExitCode.INTEGRITY


def make_private(folder: Path) -> Path:
    """Create a folder that only root can look into."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NoStateDirError(path=folder, why=error.strerror) from error
    return folder


def require_root() -> None:
    if os.geteuid() != 0:
        raise NotPermittedError()


def write_json(path: Path, document: Any) -> None:
    """Replace a document: readers see the old or the new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # write(2) and fsync(2) know only a descriptor
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_json(path: Path) -> Any:
    """A document, or None when there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateDamagedError(path=path, why=str(error)) from error


@contextmanager
def exclusive(path: Path, job: str) -> Iterator[None]:
    """Hold the lock of a job; refuses at once when somebody else does."""
    make_private(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(job=job) from error
        yield
    finally:
        os.close(fd)
