"""`--files redirect DIR` has two words."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.cli.restore_cmd import join_redirect, parse_files
from cw_snapshot.snapshot.file_rules import FilePolicy
from tests.cli.conftest import Run


def test_join() -> None:
    assert join_redirect(["snap", "--files", "redirect", "/d"]) == ["snap", "--files", "redirect=/d"]
    assert join_redirect(["--files", "keep", "snap"]) == ["--files", "keep", "snap"]
    assert join_redirect(["snap", "--files", "redirect"]) == ["snap", "--files", "redirect"]


def test_parse() -> None:
    assert parse_files("keep") == (FilePolicy.KEEP, None)
    assert parse_files("redirect=/d") == (FilePolicy.REDIRECT, Path("/d"))


@pytest.mark.parametrize("text", ["redirect", "keep=/d", "burn"])
def test_nonsense(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        parse_files(text)


def test_dead_nodes_are_those_of_a_cluster(run: Run, snapshot: str) -> None:
    assert run("restore", snapshot, "--assume-dead", "n1").code == 2
