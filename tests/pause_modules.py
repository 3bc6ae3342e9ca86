"""Run a cw-snapshot command and print what a take imports in its pause, on stderr.

python pause_modules.py WORDS...
"""

from __future__ import annotations

import sys
from typing import Any

from cw_snapshot.cli import main
from cw_snapshot.snapshot.take import NodeTake


def watch() -> None:
    stop, go = NodeTake.stop, NodeTake.go
    before: set[str] = set()

    def watched_stop(node: Any) -> None:
        before.update(sys.modules)
        stop(node)

    def watched_go(node: Any) -> None:
        go(node)
        print("imported in the pause:", *sorted(sys.modules.keys() - before), file=sys.stderr)

    NodeTake.stop = watched_stop  # type: ignore[method-assign]
    NodeTake.go = watched_go  # type: ignore[method-assign]


if __name__ == "__main__":
    watch()
    main.arguments = lambda: sys.argv[1:]
    sys.exit(main.run())
