from __future__ import annotations

import errno
import os
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest
from backend_conformance import BackendConformance

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.directory import DirectoryBackend
from cw_snapshot.storage.errors import (
    StoreFullError,
    StoreNotPermittedError,
    StoreReadOnlyError,
    StoreUnreachableError,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "parent" / "repository"


@pytest.fixture
def backend(root: Path) -> DirectoryBackend:
    return DirectoryBackend(root, create=True)


class TestDirectoryBackend(BackendConformance):
    @pytest.fixture
    def backend(self, root: Path) -> Backend:
        return DirectoryBackend(root, create=True)


def test_only_the_owner_can_read(backend: DirectoryBackend, root: Path) -> None:
    before = os.umask(0)
    try:
        backend.put("packs/aa/x", b"secret")
        backend.put_if_absent("snapshots/job/y", b"secret")
    finally:
        os.umask(before)
    for path in [root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_nothing_temporary_is_left(backend: DirectoryBackend, root: Path) -> None:
    backend.put("a", b"1")
    backend.put_if_absent("a", b"2")
    backend.put_if_absent("b", b"3")
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["a", "b"]


def test_leftovers_are_not_listed_and_swept_when_old(root: Path) -> None:
    DirectoryBackend(root, create=True).put("a", b"x")
    old, young = root / ".tmp" / "1-old", root / ".tmp" / "2-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    again = DirectoryBackend(root, stale_after=timedelta(hours=1))
    assert [found.name for found in again.list("")] == ["a"]
    assert old.exists()  # reading changes nothing
    again.put("b", b"y")
    assert not old.exists()
    assert young.exists()


def test_data_is_synced_before_it_gets_its_name(
    backend: DirectoryBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order file, fsync, rename, fsync of the directory is what makes an object durable and whole."""
    backend.put("d/first", b"")  # makes the directories
    steps: list[str] = []
    fsync, replace, link = os.fsync, Path.replace, os.link

    def seen_fsync(descriptor: int) -> None:
        steps.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", lambda *a: (steps.append("rename"), replace(*a))[1])
    monkeypatch.setattr(os, "link", lambda *a: (steps.append("link"), link(*a))[1])
    backend.put("d/x", b"1")
    backend.put_if_absent("d/y", b"2")
    folder = root.name
    assert steps == ["fsync .tmp", "rename", f"fsync {folder}", "fsync .tmp", "link", f"fsync {folder}"]


def test_a_missing_root_is_not_made_by_writing(root: Path) -> None:
    backend = DirectoryBackend(root)
    for verb in (
        lambda: backend.put("a", b""),
        lambda: backend.put_if_absent("a", b""),
        lambda: list(backend.list("")),
    ):
        with pytest.raises(StoreUnreachableError) as error:
            verb()
        assert error.value.exit_code == ExitCode.UNREACHABLE
        assert str(root) in error.value.message
    assert backend.head("a") is None
    assert not root.exists()


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, StoreFullError, ExitCode.UNREACHABLE),
        (errno.EDQUOT, StoreFullError, ExitCode.UNREACHABLE),
        (errno.EACCES, StoreNotPermittedError, ExitCode.NOT_PERMITTED),
        (errno.EROFS, StoreReadOnlyError, ExitCode.UNREACHABLE),
        (errno.EIO, StoreUnreachableError, ExitCode.UNREACHABLE),
        (errno.ESTALE, StoreUnreachableError, ExitCode.UNREACHABLE),
    ],
)
def test_a_failing_system_call_is_explained(
    backend: DirectoryBackend,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    code: ExitCode,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(kind) as error:
            backend.put("packs/aa/x", b"data")
    assert error.value.exit_code == code
    assert str(root / "packs/aa/x") in error.value.evidence[0]
    assert errno.errorcode[number] in error.value.evidence[0]
    assert list(backend.list("")) == []
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_a_lost_answer_of_link_is_recognised(
    backend: DirectoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may make the link and then repeat the call, which says that it exists."""
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert backend.put_if_absent("a", b"mine")
    monkeypatch.setattr(os, "link", link)
    assert not backend.put_if_absent("a", b"other")


def test_foreign_things_in_the_directory_are_no_objects(backend: DirectoryBackend, root: Path) -> None:
    backend.put("d/a", b"x")
    (root / "d" / ".nfs0001").write_bytes(b"")
    (root / "d" / "link").symlink_to("/etc/hostname")
    os.mkfifo(root / "d" / "fifo")
    assert [found.name for found in backend.list("")] == ["d/a"]
    assert backend.head("d") is None


def test_whether_it_can_be_written_is_known_before(
    backend: DirectoryBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.check_writable()
    assert not any(path.is_file() for path in root.rglob("*"))

    def refuse(self: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(StoreReadOnlyError):
        backend.check_writable()
