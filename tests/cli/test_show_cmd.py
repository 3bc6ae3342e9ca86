"""What is shown of a tree: no secrets, and nothing that steers the terminal."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from cw_snapshot.cli.show_cmd import _print_tree
from cw_snapshot.coordinator.redaction import Redactor
from cw_snapshot.coordinator.tree_document import tree_document


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


class Reader:
    """A snapshot's tree, without memory."""

    streams: ClassVar[dict[str, Any]] = {}
    metadata: ClassVar[dict[str, Any]] = {
        "processes": [{"pid": 7, "cmdline": ["train", "--token", "abc"], "environment": ["KEY=abc"]}],
        **dict.fromkeys(("platform", "files", "directories", "sockets", "stdio")),
    }


def test_secrets_are_hidden_unless_asked_for() -> None:
    reader: Any = Reader()
    (process,) = tree_document(reader, Redactor())["processes"]
    assert process["cmdline"] == ["train", "--token", "<redacted>"]
    assert process["environment"] == ["KEY=<redacted>"]
    (process,) = tree_document(reader, None)["processes"]
    assert process["cmdline"] == ["train", "--token", "abc"]
    assert process["environment"] == ["KEY=abc"]
