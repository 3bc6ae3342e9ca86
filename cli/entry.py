"""The console script: starts the interpreter anew, isolated, before anything of ours is imported.

The engine runs as root in folders and environments of other people's jobs. Isolated mode (-I)
ignores PYTHONPATH and the current folder, so that no `yaml.py` of a job runs as root.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    if not sys.flags.isolated:
        # numpy would start a thread per processor for linear algebra that is never done. The jobs
        # that we start must not inherit it: coordinator/start.py looks at the second variable.
        if "OPENBLAS_NUM_THREADS" not in os.environ:
            os.environ |= {"OPENBLAS_NUM_THREADS": "1", "CW_SNAPSHOT_OWN_OPENBLAS": "1"}
        os.execv(sys.executable, [sys.executable, "-I", "-m", "cw_snapshot.cli", *sys.argv[1:]])
    from cw_snapshot.cli.main import run

    sys.exit(run())
