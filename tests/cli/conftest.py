"""Running commands inside this process, without criu and without jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cw_snapshot.cli import main
from cw_snapshot.coordinator.jobs import JobRecord, JobStore
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import NodeManifest
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def run(
    state: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Run the command line; state directory and repository are this test's own."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("CW_SNAPSHOT_STATE_DIR", str(state))
    monkeypatch.setenv("CW_SNAPSHOT_REPOSITORY", str(repository))
    monkeypatch.delenv("CW_SNAPSHOT_CONFIG", raising=False)

    def run_words(*words: str) -> Done:
        capfd.readouterr()
        monkeypatch.setattr(main, "arguments", lambda: list(words))
        code = main.run()
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run_words


@pytest.fixture
def snapshot(run: Run, repository: Path) -> str:
    """A snapshot `best` of a job `llama` in the repository, without processes."""
    run("repo", "init")
    opened = Repository.open(str(repository))
    with TreeWriter(opened, LocalBroker(opened.load_index()), threads=1, memory=128 << 20) as writer:
        manifest = writer.finish({"processes": [], "files": [], "platform": {}})
    nodes = [NodeManifest("node1", manifest.digest, manifest.size)]
    summary = {"take": {"pause_seconds": 0.02, "pages": {"seen_bytes": 4096}}, "processes": 3, "job": None}
    commit = opened.commit(job="llama", incarnation=2, nodes=nodes, indexes=[], name="best", summary=summary)
    return commit.snapshot


@pytest.fixture
def ended_job(state: Path) -> JobRecord:
    """A job `done` that has ended with status 7."""
    state.mkdir(mode=0o700)
    folder = state / "jobs" / "done" / "0"
    folder.mkdir(mode=0o700, parents=True)
    (folder / "output.log").write_text("first\nlast\n")
    (folder / "status.json").write_text('{"exit_code": 7, "signal": 0, "ended": 1}\n')
    record = JobRecord(
        id="done",
        incarnation=0,
        command=["train", "--fast"],
        folder="/",
        log=str(folder / "output.log"),
        status=str(folder / "status.json"),
        init=1 << 22,
        init_starttime=1,
        root=2,
        boot="another",
        started="2026-01-02T03:04:05+00:00",
    )
    JobStore(state).save(record)
    return record
