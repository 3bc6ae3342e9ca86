"""A repository in a directory, on a local or a shared file system.

Objects are files at their names below the root, mode 0600 in directories of mode 0700. A file
is written under a temporary name, fsynced, and renamed (or linked, for put_if_absent) into
place; then the directory is fsynced. Temporary files live in `.tmp`, which no object name can
reach; those a crash left behind are swept when they are old.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from cw_snapshot.storage.backend import Backend, StoredObject, check_name, check_prefix
from cw_snapshot.storage.errors import (
    ObjectMissingError,
    ObjectTooShortError,
    StoreError,
    StoreFullError,
    StoreNotPermittedError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from cw_snapshot.storage.pages import Bytes

_TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


class DirectoryBackend(Backend):
    """See the module, and :class:`Backend` for the contract."""

    def __init__(
        self, root: Path, *, create: bool = False, stale_after: timedelta = timedelta(days=1)
    ) -> None:
        """A store at `root`; with `create` the directory is made if it is missing.

        Without `create` nothing ever makes the root: if its file system is not mounted, writing
        fails instead of filling the mount point. Temporary files older than `stale_after` are
        removed before the first write; it must exceed the time one object takes to write.
        """
        self._root = root
        self._stale_after = stale_after
        self._sweep_once = threading.Lock()
        if create:
            with self._reported(""):
                root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def location(self) -> str:
        return str(self._root)

    def put(self, name: str, data: Bytes) -> None:
        with self._reported(name), self._written(name, data) as (temporary, target):
            temporary.replace(target)

    def put_if_absent(self, name: str, data: Bytes) -> bool:
        with self._reported(name), self._written(name, data) as (temporary, target):
            try:
                os.link(temporary, target)
            except FileExistsError:
                # A network file system may repeat a call that had succeeded: then the link is ours.
                return temporary.stat().st_nlink == 2
        return True

    def get_range(self, name: str, offset: int = 0, length: int | None = None) -> Bytes:
        with self._reported(name), self._opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            end = size if length is None else offset + length
            if not 0 <= offset <= end <= size:
                raise ObjectTooShortError(name=name, store=self.location, end=max(offset, end))
            return _read(descriptor, offset, end - offset)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        check_prefix(prefix)
        with self._reported(prefix):
            self._check_root()
            yield from self._walk(prefix)

    def head(self, name: str) -> int | None:
        check_name(name)
        with self._reported(name):
            try:
                status = (self._root / name).stat()
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                raise
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def delete(self, name: str) -> None:
        check_name(name)
        path = self._root / name
        with self._reported(name):
            try:
                path.unlink()
                _fsync_directory(path.parent)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise

    def check_writable(self) -> None:
        with self._reported(""):
            self._check_root()
            folder = self._root / _TEMPORARY
            self._make_directory(folder)
            temporary = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
            try:
                temporary.write_bytes(bytes(4096))
            finally:
                with suppress(OSError):
                    temporary.unlink()

    @contextmanager
    def _written(self, name: str, data: Bytes) -> Iterator[tuple[Path, Path]]:
        """A durable temporary file with `data`, and the path it is for; then clean and make durable."""
        check_name(name)
        target = self._root / name
        self._check_root()
        self._make_directory(target.parent)
        folder = self._root / _TEMPORARY
        self._make_directory(folder)
        temporary = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if self._sweep_once.acquire(blocking=False):  # never released: once is enough
                    self._sweep(os.fstat(descriptor).st_mtime)
                _write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary, target
        finally:
            with suppress(OSError):
                temporary.unlink()
        _fsync_directory(target.parent)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        check_name(name)
        try:
            descriptor = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _ABSENT:
                raise ObjectMissingError(name=name, store=self.location) from error
            raise
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        try:
            entries = list(os.scandir(self._root / prefix))
        except OSError as error:
            if error.errno in _ABSENT:
                return
            raise
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(f"{prefix}{entry.name}/")
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # deleted since
                continue
            if stat.S_ISREG(status.st_mode):
                yield StoredObject(prefix + entry.name, status.st_size)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnreachableError(store=self.location, what="the directory is not there")

    def _make_directory(self, path: Path) -> None:
        """Make `path` and what is missing between it and the root, durably."""
        if path.is_dir() or path == self._root:
            return
        self._make_directory(path.parent)
        with suppress(FileExistsError):  # another thread or process was faster
            path.mkdir(mode=0o700)
        _fsync_directory(path.parent)

    def _sweep(self, now: float) -> None:
        """Remove stale temporary files. `now` is the store's own clock, not this machine's."""
        limit = now - self._stale_after.total_seconds()
        with suppress(OSError):  # tidying up may not fail a write
            for entry in os.scandir(self._root / _TEMPORARY):
                if entry.stat(follow_symlinks=False).st_mtime < limit:
                    Path(entry.path).unlink(missing_ok=True)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Turn an OSError into the error the user reads."""
        try:
            yield
        except OSError as error:
            kind: type[StoreError] = StoreUnreachableError
            if error.errno in _FULL:
                kind = StoreFullError
            elif error.errno == errno.EROFS:
                kind = StoreReadOnlyError
            elif error.errno in _REFUSED:
                kind = StoreNotPermittedError
            path = error.filename or (self._root / name)
            raise kind(
                store=self.location,
                what=error.strerror or type(error).__name__,
                evidence=[f"{path}: errno {error.errno} ({errno.errorcode.get(error.errno or 0, '?')})"],
            ) from error


def _read(descriptor: int, offset: int, length: int) -> Bytes:
    """Exactly `length` bytes; one system call if the kernel gives them in one."""
    data = os.pread(descriptor, length, offset)
    if len(data) == length:
        return data
    parts = [data]
    done = len(data)
    while done < length:
        part = os.pread(descriptor, length - done, offset + done)
        if not part:
            raise OSError(errno.EIO, "the file shrank while it was read")
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _write(descriptor: int, data: Bytes) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
