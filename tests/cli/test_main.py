"""What holds for every command: errors as text and as JSON, exit codes."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run


def test_an_error_names_its_fix(run: Run) -> None:
    done = run("wait", "nobody")
    assert done.code == 6
    assert not done.out
    assert "Fix:" in done.err


def test_errors_as_json(run: Run) -> None:
    document = run("wait", "nobody", "--json").json
    assert document["schema"] == "cw-snapshot/error/1"
    assert (document["code"], document["exit_code"]) == ("job-not-found", 6)
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
