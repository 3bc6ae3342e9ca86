"""The console script: starts the interpreter anew, isolated, before anything of ours is imported.

The engine runs as root in folders and environments of other people's jobs. Isolated mode (-I)
ignores PYTHONPATH and the current folder, so that no `yaml.py` of a job runs as root.
"""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 4
"""ExitCode.ABORTED, which is not imported yet."""


def _open_closed_streams() -> None:
    """Give stdin, stdout and stderr something to be: with one of them closed, the next file that is
    opened takes its number, and what we print goes into it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: fd


def main() -> None:
    try:
        _open_closed_streams()
        if not sys.flags.isolated:
            # numpy would start a thread per processor for linear algebra that is never done. The jobs
            # that we start must not inherit it: coordinator/start.py looks at the second variable.
            if "OPENBLAS_NUM_THREADS" not in os.environ:
                os.environ |= {"OPENBLAS_NUM_THREADS": "1", "CW_SNAPSHOT_OWN_OPENBLAS": "1"}
            os.execv(sys.executable, [sys.executable, "-I", "-m", "cw_snapshot.cli", *sys.argv[1:]])
        from cw_snapshot.cli.main import run

        status = run()
    except KeyboardInterrupt:  # during the imports; later the command handles it
        os.write(2, b"cw-snapshot: interrupted\n")
        status = _INTERRUPTED
    sys.exit(status)
