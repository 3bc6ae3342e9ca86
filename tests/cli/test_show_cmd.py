"""What is shown of a tree: no secrets, and nothing that steers the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from cw_snapshot.cli.show_cmd import _print_tree
from cw_snapshot.coordinator.redaction import Redactor
from cw_snapshot.coordinator.tree_document import tree_document
from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.commit import NodeManifest
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import TreeWriter
from tests.cli.conftest import Run


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


def test_two_trees_of_one_node(run: Run, repository: Path) -> None:
    run("repo", "init")
    opened = Repository.open(str(repository))
    manifests = []
    for cmdline in ("one", "two"):
        with TreeWriter(opened, LocalBroker(opened.load_index()), threads=1, memory=128 << 20) as writer:
            process = {"pid": 1, "parent": 0, "cmdline": [cmdline], "environment": []}
            fields = {key: [] for key in ("files", "directories", "sockets", "stdio")}
            manifests.append(
                writer.finish({"processes": [process], "platform": {"kernel": "6", "criu": "4"}, **fields})
            )
    nodes = [NodeManifest("node1", manifest.digest, manifest.size) for manifest in manifests]
    opened.commit(job="llama", incarnation=0, nodes=nodes, indexes=[], name="two", summary={})
    trees = run("show", "two", "--json").json["trees"]
    assert {name: tree["processes"][0]["cmdline"] for name, tree in trees.items()} == {
        "node1#0": ["one"],
        "node1#1": ["two"],
    }
