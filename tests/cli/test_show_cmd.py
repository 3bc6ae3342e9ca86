"""What a job is called can't steer the terminal."""

from __future__ import annotations

import pytest

from cw_snapshot.cli.show_cmd import _print_tree


def test_names_of_a_job_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    memory = {"data_bytes": 0, "zero_bytes": 0}
    process = {
        "pid": 7,
        "parent": 0,
        "cmdline": ["a\x1b[2J", "b\nc\td"],
        "memory": memory,
        "environment": ["A=\x1b"],
    }
    file = {"path": "/tmp/\x07", "flags": 1, "size": 0, "carried": None}
    facts = {"kernel": "6", "criu": "4"}
    tree = {"platform": facts, "processes": [process], "files": [file], "sockets": []}
    _print_tree("node", tree, environment=True)
    out = capsys.readouterr().out
    assert "a?[2J b?c d" in out
    assert out.replace("\n", "").isprintable()
