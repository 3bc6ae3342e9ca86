"""`repo init` creates a repository once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.errors import IndexDamagedError
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter
from tests.cli.conftest import Run


def test_init(run: Run, repository: Path) -> None:
    done = run("repo", "init", "--json")
    assert done.code == 0
    assert len(done.json["id"]) == 32
    assert repository.stat().st_mode & 0o777 == 0o700
    again = run("repo", "init")
    assert again.code == 2
    assert str(repository) in again.err


def test_a_folder_with_other_files_is_left_alone(run: Run, repository: Path) -> None:
    repository.mkdir()
    (repository / "thesis.tex").touch()
    done = run("repo", "init")
    assert done.code == 2
    assert "other files" in done.err
    assert [p.name for p in repository.iterdir()] == ["thesis.tex"]


def test_a_repository_must_be_named(run: Run) -> None:
    done = run("repo", "init", "--repo", "")
    assert done.code == 2


class OnePage:
    """A page to store."""

    def runs(self) -> list[tuple[int, int]]:
        return [(0, 4096)]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = b"x" * 4096

    def finish(self) -> None: ...


def test_a_damaged_index_is_made_anew(run: Run, repository: Path) -> None:
    run("repo", "init")
    opened = Repository.open(str(repository))
    with TreeWriter(opened, LocalBroker(opened.load_index()), threads=1, memory=128 << 20) as writer:
        writer.add_stream("pages/1", OnePage(), "1")
        writer.finish({})
    (index,) = (path for path in (repository / "index").rglob("*") if path.is_file())
    index.chmod(0o600)
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    with pytest.raises(IndexDamagedError, match="damaged"):
        opened.load_index()
    done = run("repo", "repair-index", "--json")
    assert (done.code, done.json["packs"], done.json["problems"]) == (0, 1, [])
    assert len(opened.load_index().packs) == 1
    assert run("repo", "repair-index").out == "0 packs indexed, 0 damaged parts removed\n"
