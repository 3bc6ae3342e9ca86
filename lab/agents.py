"""The agents of a lab: one program in each node's namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.lab import namespaces
from cw_snapshot.lab.plan import LabPlan, Node

PORT = 7431
_AGENT = ("-I", "-m", "cw_snapshot.cli", "agent")
_CLUSTER_SCHEMA = "cw-snapshot/cluster/1"


class AgentNotStartedError(CwError):
    """The agent of node {node} did not start.

    Fix: see its log.
    """

    exit_code = ExitCode.ABORTED


def node_folder(folder: Path, node: Node) -> Path:
    """State directory of a node, under the lab's folder."""
    return folder / "nodes" / node.name


def certificates_folder(folder: Path) -> Path:
    return folder / "certificates"


def write_cluster(plan: LabPlan, folder: Path) -> Path:
    """The file by which commands find the agents."""
    path = folder / "cluster.json"
    document = {
        "schema": _CLUSTER_SCHEMA,
        "authority": "certificates/ca.pem",
        "certificate": "certificates/coordinator.pem",
        "key": "certificates/coordinator.key",
        "nodes": {node.name: f"{node.address}:{PORT}" for node in plan.members},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def start_missing(plan: LabPlan, folder: Path) -> list[str]:
    """Start the agent of every node that has none. Returns these nodes' names when all are ready.

    :raises AgentNotStartedError: one is not.
    """
    missing = [node for node in plan.members if running(folder, node) is None]
    with ExitStack() as pipes:
        started = [(node, pipes.enter_context(_start(folder, node))) for node in missing]
        for node, agent in started:
            assert agent.stdout is not None
            if agent.stdout.readline() != "ready\n":
                log = node_folder(folder, node) / "agent.log"
                raise AgentNotStartedError(node=node.name, evidence=[str(log), *_tail(log)])
            (node_folder(folder, node) / "agent.pid").write_text(f"{agent.pid}\n")
            agent.returncode = 0  # it goes on; nobody here waits for it
    return [node.name for node in missing]


def _start(folder: Path, node: Node) -> subprocess.Popen[str]:
    own = node_folder(folder, node)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificates = certificates_folder(folder)
    words: list[str | Path] = ["--node", node.name, "--listen", f"{node.address}:{PORT}"]
    words += ["--authority", certificates / "ca.pem", "--certificate", certificates / f"{node.name}.pem"]
    words += ["--key", certificates / f"{node.name}.key", "--state-dir", own]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CW_SNAPSHOT_")}
    kept = {k: v for k, v in os.environ.items() if k == "CW_SNAPSHOT_CRIU_BUNDLE"}
    with (own / "agent.log").open("a") as log:
        return subprocess.Popen(
            [*namespaces.entering(node.namespace), sys.executable, *_AGENT, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd="/",
            env={**environment, **kept},
            start_new_session=True,
        )


def running(folder: Path, node: Node) -> int | None:
    """Pid of the agent of a node, if it runs."""
    with suppress(OSError, ValueError):
        pid = int((node_folder(folder, node) / "agent.pid").read_text())
        if pid in namespaces.processes([node.namespace]):
            return pid
    return None


def _tail(log: Path) -> Iterator[str]:
    with suppress(OSError):
        yield from log.read_text().splitlines()[-5:]
