"""A node of which a part is killed at a chosen moment, and a network that is cut there.

Run as `python faults.py agent FAULTS WORDS...` it is the agent, and as `python faults.py worker FAULTS FD
NODE` a worker of it. FAULTS is a file: empty, or one fault for the next operation as
`NODE VICTIM SIDE PHASE`.
`python faults.py command VICTIM SIDE PHASE WORDS...` is a command of the coordinator that is killed,
stopped or asked to end (`kill`, `hang`, `term`), or waits so long (`wait=SECONDS`), before a phase is told or
when the first node has done it; or before or after `commit`. `late=PID:SECONDS` stops that process, an
agent, for so long before the phase is told.

- VICTIM: `worker`, `agent`, `guard`, `criu` or `all` but criu is killed, `hang` stops the worker,
  `agent-hang` the agent, and `cut` takes the node's management NIC down;
- SIDE: `before` or `after`;
- PHASE: one of the barrier's.

What was done is written to FAULTS.done, so that a test knows that its fault was no empty threat.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cw_snapshot.cli import main as cli
from cw_snapshot.coordinator import agent, node_worker
from cw_snapshot.coordinator.barrier import Phase
from cw_snapshot.coordinator.conduct import Conductor
from cw_snapshot.coordinator.node_links import Arrived, NodeLinks
from cw_snapshot.coordinator.node_restore import RestoreWork
from cw_snapshot.coordinator.node_take import TakeWork
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.lab.plan import MANAGEMENT
from cw_snapshot.snapshot.launch import host_pid
from cw_snapshot.snapshot.procfs import ProcessGoneError
from cw_snapshot.storage.repository import Repository


def strike(victim: str, work: Any) -> bool:
    """Returns whether there was somebody to strike."""
    try:
        match victim:
            case "all":
                os.kill(work._node._guard._process.pid, signal.SIGKILL)
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            case "worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "agent":
                os.kill(os.getppid(), signal.SIGKILL)
            case "agent-hang":
                os.kill(os.getppid(), signal.SIGSTOP)
            case "guard":
                os.kill(work._node._guard._process.pid, signal.SIGKILL)
            case "criu" if isinstance(work, TakeWork):
                node: Any = work._node
                os.killpg(node._session.pid, signal.SIGKILL)
            case "criu":
                launched = work._node.launched
                os.kill(host_pid(launched.init, launched.command), signal.SIGKILL)
            case "cut":
                subprocess.run(["ip", "link", "set", MANAGEMENT, "down"], check=True)
            case _:
                raise AssertionError(victim)
    except (ProcessLookupError, ProcessGoneError, AttributeError):
        return False  # not there yet, or no more
    return True


def arrange(kind: type[Any], faults: Path, node: str) -> None:
    """Have every phase look whether it is the chosen one."""
    original = kind.do

    def at(work: Any, side: str, phase: Phase) -> None:
        words = faults.read_text().split()
        if words[2:] == [side, phase.value] and words[0] == node:
            faults.write_text("")
            done = faults.with_suffix(".done")
            done.write_text("yes")  # first: we may be the victim
            if not strike(words[1], work):
                done.write_text("nobody")

    def do(work: Any, phase: Phase) -> Any:
        at(work, "before", phase)
        result = original(work, phase)
        at(work, "after", phase)
        return result

    kind.do = do


COMMANDS = ("kill", "term", "wait", "late")
"""What happens to the command of an operation, not to a node; `hang` may be either."""


def _strike_command(victim: str) -> None:
    name, _, which = victim.partition("=")
    match name:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)
        case "wait":
            time.sleep(float(which))
        case "late":
            pid, _, seconds = which.partition(":")
            os.kill(int(pid), signal.SIGSTOP)
            threading.Timer(float(seconds), os.kill, [int(pid), signal.SIGCONT]).start()
        case _:
            raise AssertionError(victim)


def arrange_command(victim: str, side: str, phase: str) -> None:
    """Have something happen to the coordinator at its moment."""
    struck: list[str] = []
    tell, handle, commit = NodeLinks.tell, Conductor._handle, Repository.commit

    def told(links: NodeLinks, what: Phase) -> None:
        if (side, phase) == ("before", what.value):
            _strike_command(victim)
        tell(links, what)

    def handled(conductor: Conductor, arrived: Arrived) -> Phase | None:
        voted = isinstance(arrived.what, wire.Vote) and arrived.what.phase == phase
        if side == "after" and voted and not struck:
            struck.append(phase)  # the votes of the other nodes come later
            _strike_command(victim)
        return handle(conductor, arrived)

    def committed(repository: Repository, **words: Any) -> Any:
        if (side, phase) == ("before", "commit"):
            _strike_command(victim)
        result = commit(repository, **words)
        if (side, phase) == ("after", "commit"):
            _strike_command(victim)
        return result

    NodeLinks.tell, Conductor._handle, Repository.commit = told, handled, committed  # type: ignore


def main(words: Sequence[str]) -> int:
    kind, faults, *rest = words
    if kind == "worker":
        with suppress(FileNotFoundError):
            arrange(TakeWork, Path(faults), rest[1])
            arrange(RestoreWork, Path(faults), rest[1])
        return node_worker.main(rest)
    if kind == "command":
        arrange_command(faults, rest[0], rest[1])
        cli.arguments = lambda: rest[2:]
    else:
        agent._WORKER = (__file__, "worker", faults)  # type: ignore[assignment]
        cli.arguments = lambda: ["agent", *rest]
    return cli.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
