"""`lab`: what the command line adds to the room of that name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Run


@pytest.mark.lab
def test_up_status_cut_exec_down(run: Run) -> None:
    name = f"test{os.getpid()}cli"
    try:
        made = run("lab", "up", "--lab", name, "--nodes", "2", "--nics", "1", "--json").json
        assert made["schema"] == "cw-snapshot/lab-up/1"
        assert made["made"]
        assert [node["node"] for node in made["nodes"]] == ["n1", "n2"]
        assert run("lab", "cut", "--lab", name, "n1", "eth0").out == "n1 eth0: cut\n"
        status = run("lab", "status", "--lab", name, "--json").json["labs"][0]
        assert [node["nics"][0]["link"] for node in status["nodes"]] == ["cut", "up"]
        assert "cut" in run("lab", "status").out
        assert run("lab", "mend", "--lab", name, "n1", "eth0").out == "n1 eth0: up\n"
        words = [
            sys.executable,
            "-m",
            "cw_snapshot.cli",
            "lab",
            "exec",
            "--lab",
            name,
            "n2",
            "--",
            "ip",
            "-br",
        ]
        done = subprocess.run([*words, "address"], capture_output=True, text=True, check=True)
        assert status["nodes"][1]["nics"][0]["ipv4"] in done.stdout
        assert run("lab", "exec", "--lab", name, "n9", "--", "true").code == 6
        assert run("lab", "cut", "--lab", name, "n1", "mgmt0").code == 2
    finally:
        assert run("lab", "down", "--lab", name).code == 0
    assert run("lab", "status", "--lab", name).code == 6
    assert run("lab", "down", "--lab", name).code == 6


@pytest.mark.parametrize(
    "words", [("--lab", "../x"), ("--nodes", "0"), ("--nodes", "201"), ("--nics", "0"), ("--nics", "17")]
)
def test_what_can_not_be(run: Run, words: tuple[str, str]) -> None:
    assert run("lab", "up", *words).code == 2
