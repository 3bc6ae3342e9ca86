"""What README shows works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cw_snapshot.lab import labs

pytestmark = [pytest.mark.lab, pytest.mark.root]

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_ends_identical_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, DEMO, "--steps", "400", "--keep", tmp_path / "kept"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        printed, _ = demo.communicate()
    lines = printed.splitlines()
    assert demo.returncode == 0, printed
    assert lines[-1] == "identical"
    assert any(line.startswith("n1 -> n3: 10.") for line in lines), "restored on others"
    assert f"demo-{demo.pid}" not in [lab.name for lab in labs.every()]


def test_a_demo_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    labs.up(f"demo-{gone.pid}", 1, 1)
    try:
        code = "import demo; demo.clean_up(demo.Demo(__import__('pathlib').Path('.'), 1))"
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(DEMO.parent)}, check=True
        )
        assert f"demo-{gone.pid}" not in [lab.name for lab in labs.every()]
    finally:
        if f"demo-{gone.pid}" in [lab.name for lab in labs.every()]:
            labs.down(f"demo-{gone.pid}")
