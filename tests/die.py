"""Run a cw-snapshot command in which somebody is killed at a chosen moment.

    python die.py VICTIM MOMENT WORDS...

VICTIM is `command`, `guard`, `both`, `criu` or `keeper`; `hang` stops the command. MOMENT is
`before:METHOD` or `after:METHOD` of the node's take or restore, or `METHOD:MILLISECONDS` for so long
after the method began.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cw_snapshot.cli import main
from cw_snapshot.snapshot.journal import Journal, Phase
from cw_snapshot.snapshot.launch import host_pid
from cw_snapshot.snapshot.procfs import ProcessGoneError
from cw_snapshot.snapshot.restore import NodeRestore
from cw_snapshot.snapshot.take import NodeTake

Node = NodeTake | NodeRestore


def kill(victim: str, node: Any) -> None:
    with suppress(ProcessLookupError, ProcessGoneError, AttributeError):  # not there yet, or no more
        if victim == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        if victim in ("both", "guard"):
            os.kill(node._guard._process.pid, signal.SIGKILL)
        if victim in ("both", "command"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif victim == "keeper":
            os.kill(node._pages._shadows._keeper.pid, signal.SIGKILL)
        elif victim == "criu" and isinstance(node, NodeRestore):
            os.kill(_criu_below(node), signal.SIGKILL)
        elif victim == "criu":
            os.killpg(node._session.pid, signal.SIGKILL)


def _criu_below(node: NodeRestore) -> int:
    launched: Any = node.launched
    return host_pid(launched.init, launched.command)


def arrange(kind: type[Node], victim: str, moment: str) -> bool:
    """Returns whether there is such a moment."""
    word, _, rest = moment.partition(":")
    method = rest if word in ("before", "after") else word
    original: Callable[..., Any] | None = getattr(kind, method, None)
    if original is None:
        return False

    def replaced(node: Any, *args: Any, **kwargs: Any) -> Any:
        if word == "before":
            kill(victim, node)
        elif word != "after":
            threading.Thread(target=_later, args=(victim, node, float(rest)), daemon=True).start()
        result = original(node, *args, **kwargs)
        if word == "after":
            kill(victim, node)
        return result

    setattr(kind, method, replaced)
    return True


def _later(victim: str, node: Any, milliseconds: float) -> None:
    time.sleep(milliseconds / 1e3)
    kill(victim, node)


def at_injection(victim: str, milliseconds: float) -> None:
    """Kill so long after the shadow maker has begun."""
    original = NodeTake.shadow

    def watch(node: Any, journal: Journal) -> None:
        while journal.phase is Phase.IDLE:
            pass
        _later(victim, node, milliseconds)

    def shadow(node: Any) -> None:
        threading.Thread(target=watch, args=(node, node._journal), daemon=True).start()
        original(node)

    NodeTake.shadow = shadow  # type: ignore[method-assign]


if __name__ == "__main__":
    who, when, *words = sys.argv[1:]
    if when.startswith("injection:"):
        at_injection(who, float(when.partition(":")[2]))
    elif not any([arrange(NodeTake, who, when), arrange(NodeRestore, who, when)]):
        sys.exit(f"there is no moment {when!r}: the test would kill nobody")
    main.arguments = lambda: words
    sys.exit(main.run())
