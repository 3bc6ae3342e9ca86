"""Every command's help is complete."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cw_snapshot.cli.main import COMMANDS, main

GROUPS = {"repo": ["init", "repair-index"], "lab": ["up", "status", "down", "cut", "mend"]}
NAMES = [[name] for name in COMMANDS if name not in GROUPS]
NAMES += [[group, name] for group, names in GROUPS.items() for name in names]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_help(words: list[str]) -> None:
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert "EXIT STATUS" in done.output
    for code in ("0 ", "1 ", "2 ", "9 "):
        assert f"\n  {code}" in done.output, f"exit status {code} is not explained"
    assert "--json" in done.output
    body = done.output.split("Options:")[0]
    assert len(body.split("\n\n")) >= 3, "a usage line and a description"
    assert done.output.rindex("EXIT STATUS") > done.output.rindex("Options:")


def test_the_list_of_commands() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    for name, text in COMMANDS.items():
        assert name in done.output
        assert text in done.output


def test_unknown_command() -> None:
    assert CliRunner().invoke(main, ["undo"]).exit_code == 2
