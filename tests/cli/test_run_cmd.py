"""What `run` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.cli.run_cmd import parse_labels
from cw_snapshot.errors import CwError
from tests.cli.conftest import Run


def test_labels() -> None:
    assert parse_labels(("team=x", "run=7")) == {"team": "x", "run": "7"}
    for bad in ("team", "=x", "a b=c", "team=", "team=x y"):
        with pytest.raises(CwError):
            parse_labels((bad,))


@pytest.mark.parametrize("job", ["", "a/b", "../up", "x" * 65, "-x", "ü"])
def test_job_ids(run: Run, job: str) -> None:
    assert run("run", f"--job-id={job}", "--", "true").code == 2


def test_nproc_with_torchrun(run: Run) -> None:
    done = run("run", "--job-id", "a", "--nproc-per-node", "2", "--", "torchrun", "train.py")
    assert done.code == 2
    assert "torchrun" in done.err


@pytest.mark.parametrize("user", ["no-such-user", "", "²", "9" * 30, "9" * 5000])
def test_unknown_user(run: Run, user: str) -> None:
    done = run("run", "--job-id", "a", "--user", user, "--", "true")
    assert done.code == 2
    assert f"no user {user!r}" in done.err


def test_a_folder_that_was_deleted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for words in (["run", "--job-id", "a", "--", "true"], ["restore", "a", "--files", "redirect=x"]):
        done = run(*words)
        assert done.code == 2
        assert "current folder" in done.err
    done = run("ps", "--state-dir", "x")
    assert done.code == 2
    assert "current folder" in done.err
