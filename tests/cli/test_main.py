"""What holds for every command: errors as text and as JSON, exit codes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cw_snapshot.cli import main
from cw_snapshot.coordinator.jobs import JobRecord, JobStore
from tests.cli.conftest import Run


def test_an_error_names_its_fix(run: Run) -> None:
    done = run("wait", "nobody")
    assert done.code == 6
    assert not done.out
    assert "Fix:" in done.err


def test_errors_as_json(run: Run) -> None:
    document = run("wait", "nobody", "--json").json
    assert document["schema"] == "cw-snapshot/error/1"
    assert (document["code"], document["exit_code"]) == ("nothing-to-wait-for", 6)
    assert document["fix"]


def test_wrong_usage(run: Run) -> None:
    assert run("wait").code == 2
    document = run("wait", "--json").json
    assert (document["code"], document["exit_code"]) == ("usage", 2)
    assert "JOB" in document["message"]


def test_settings_are_named_with_their_source(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("max_pause: soon\n")
    done = run("ps", "--config", str(config))
    assert done.code == 2
    assert str(config) in done.err
    assert "max_pause" in done.err


def test_what_the_system_refuses(run: Run, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: JobStore) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/some/path")

    monkeypatch.setattr(JobStore, "all", refuse)
    done = run("ps")
    assert done.code == 1
    assert "Read-only file system" in done.err
    assert "/some/path" in done.err
    assert "defect" not in done.err
    assert "Traceback" not in done.err
    assert run("ps", "--json").json["code"] == "system-failed"
    monkeypatch.setenv("CW_SNAPSHOT_TRACEBACK", "1")
    assert "Traceback" in run("ps").err


@pytest.mark.parametrize(
    "words", [["list"], ["list", "--json"], ["logs", "done"], ["ps", "--all"], ["--help"]]
)
@pytest.mark.root
def test_a_full_device_as_stdout(
    snapshot: str, ended_job: JobRecord, tmp_path: Path, words: list[str]
) -> None:
    environment = {
        **os.environ,
        "CW_SNAPSHOT_STATE_DIR": str(tmp_path / "state"),
        "CW_SNAPSHOT_REPOSITORY": str(tmp_path / "repository"),
    }
    command = [Path(sys.prefix) / "bin" / "cw-snapshot", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_an_error_does_not_steer_the_terminal(run: Run) -> None:
    done = run("show", "a\x1b[2J")
    assert "\x1b" not in done.err
    assert "Fix:" in done.err.splitlines()[-1]


def test_an_interruption_is_told_in_json_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.main, "main", interrupted)
    done = run("ps", "--json")
    assert (done.code, done.json["code"]) == (4, "command-interrupted")
    assert done.err == "cw-snapshot: interrupted\n"
