"""The console script, as the shell starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.prefix) / "bin" / "cw-snapshot"
FDS = """
import os, sys
print([os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)], file=open(sys.argv[1], "w"))
"""


def shell(line: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )


def test_closed_streams_are_opened(tmp_path: Path) -> None:
    code = "from cw_snapshot.cli.entry import _open_closed_streams\n_open_closed_streams()\n" + FDS
    out = tmp_path / "out"
    shell('"$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, code, out)
    assert out.read_text() == "['/dev/null', '/dev/null', '/dev/null']\n"
    shell('exec "$0" -c "$1" "$2" 2>&-', sys.executable, code, out)
    assert "'/dev/null'" in out.read_text()


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_with_closed_streams(tmp_path: Path, closed: str) -> None:
    code = tmp_path / "code"
    line = f'"$0" wait --state-dir "$1" nobody {closed}; echo $? > "$2"'
    shell(line, COMMAND, tmp_path / "state", code)
    assert code.read_text() == ("6\n" if os.geteuid() == 0 else "9\n")


def test_an_interrupt_during_the_imports() -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'cw_snapshot.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from cw_snapshot.cli.entry import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "cw-snapshot: interrupted\n")
