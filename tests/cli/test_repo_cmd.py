"""`repo init` creates a repository once."""

from __future__ import annotations

from pathlib import Path

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
