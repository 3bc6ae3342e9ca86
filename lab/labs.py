"""The labs of this machine: up, down, and what is known of each.

Records lie in /run: like the namespaces they end with the machine. A lab is known by its name alone, so
that another user of the machine, or the next run of a test that was killed, finds and removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from hashlib import blake2s
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode, UsageError
from cw_snapshot.lab import agents, certificates, namespaces, network
from cw_snapshot.lab.plan import MOST_NICS, MOST_NODES, LabPlan, Node, free_block
from cw_snapshot.lab.plan import network as block_network

FOLDER = Path("/run/cw-snapshot/labs")
SCHEMA = "cw-snapshot/lab/1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATIENCE = timedelta(seconds=20)


class LabNotFoundError(CwError):
    """There is no lab {lab}.

    Fix: `cw-snapshot lab up`; `cw-snapshot lab status` lists the labs that are there.
    """

    exit_code = ExitCode.NOT_FOUND


class NodeNotFoundError(CwError):
    """Lab {lab} has no node {node}; it has n1 to n{count}.

    Fix: name one of these.
    """

    exit_code = ExitCode.NOT_FOUND


class LabDiffersError(CwError):
    """Lab {lab} is up already, with {nodes} nodes and {nics} NICs.

    Fix: `cw-snapshot lab down --lab {lab}` first, or give the new one another name with --lab.
    """

    exit_code = ExitCode.REFUSED


class NoAddressesError(CwError):
    """No range of addresses is free for a lab: each of 10.64.0.0/16 to 10.127.0.0/16 is in use here.

    Fix: take labs down, or remove routes to these networks.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab."""

    plan: LabPlan
    folder: Path
    """Of its record, its certificates and its nodes; 0700."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def cluster_file(self) -> Path:
        """By which commands find the agents."""
        return self.folder / "cluster.json"

    def node(self, name: str) -> Node:
        """:raises NodeNotFoundError: there is none of that name."""
        found = self.plan.node(name)
        if found is None:
            raise NodeNotFoundError(lab=self.name, node=name, count=self.plan.nodes)
        return found


def up(name: str, nodes: int, nics: int) -> tuple[Lab, bool]:
    """Make a lab; also true when it was made now, and not found as it should be.

    What a killed `up` or `down` of the same name has left is removed first.

    :raises LabDiffersError: it is up with another shape.
    """
    _check(name, nodes, nics)
    with _lock():
        found = _read(name)
        if found is not None and not network.missing(found.plan):
            if (found.plan.nodes, found.plan.nics) != (nodes, nics):
                raise LabDiffersError(lab=name, nodes=found.plan.nodes, nics=found.plan.nics)
            agents.start_missing(found.plan, found.folder)
            return found, False
        _remove(name)
        plan = LabPlan(name, nodes, nics, _choose_block(name))
        try:
            network.make(plan)
            (FOLDER / name).mkdir(mode=0o700)
            certificates.make(plan, agents.certificates_folder(FOLDER / name))
            agents.write_cluster(plan, FOLDER / name)
            agents.start_missing(plan, FOLDER / name)
        except BaseException:
            _remove(name)
            raise
        # Last: without its record a lab is half-made.
        _write(plan)
    return Lab(plan, FOLDER / name), True


def down(name: str) -> None:
    """End everything that runs in a lab and remove it.

    :raises LabNotFoundError: nothing of a lab of that name is here.
    """
    _check(name, 1, 1)
    with _lock():
        if _read(name) is None and not network.namespaces_of(name):
            raise LabNotFoundError(lab=name)
        _remove(name)


def find(name: str) -> Lab:
    """:raises LabNotFoundError: there is no such lab, or it is only half made."""
    found = _read(name)
    if found is None or network.missing(found.plan):
        raise LabNotFoundError(lab=name)
    return found


def every() -> list[Lab]:
    """All labs that were made completely."""
    entries = sorted(FOLDER.iterdir()) if FOLDER.is_dir() else []
    return [lab for entry in entries if entry.is_dir() and (lab := _read(entry.name)) is not None]


def _check(name: str, nodes: int, nics: int) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(what=f"lab name {name!r} is not of the form [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}")
    if not 1 <= nodes <= MOST_NODES:
        raise UsageError(what=f"a lab has 1 to {MOST_NODES} nodes, not {nodes}")
    if not 1 <= nics <= MOST_NICS:
        raise UsageError(what=f"a node has 1 to {MOST_NICS} NICs, not {nics}")


def _choose_block(name: str) -> int:
    used = [*network.networks_in_use(), *(block_network(lab.plan.block) for lab in every())]
    block = free_block(used, preferred=blake2s(name.encode()).digest()[0])
    if block is None:
        raise NoAddressesError()
    return block


def _remove(name: str) -> None:
    record = FOLDER / name / "lab.json"
    record.unlink(missing_ok=True)
    namespaces.end_processes(network.namespaces_of(name), _PATIENCE)
    network.remove(name)
    shutil.rmtree(FOLDER / name, ignore_errors=True)


def _write(plan: LabPlan) -> None:
    folder = FOLDER / plan.name
    temporary = folder / "lab.json.new"
    temporary.write_text(json.dumps({"schema": SCHEMA, **asdict(plan)}, indent=1) + "\n")
    temporary.replace(folder / "lab.json")


def _read(name: str) -> Lab | None:
    """What is recorded; a record of another version counts as none."""
    with suppress(OSError, ValueError):
        record: dict[str, Any] = json.loads((FOLDER / name / "lab.json").read_text())
        if record.pop("schema", None) == SCHEMA:
            return Lab(LabPlan(**record), FOLDER / name)
    return None


@contextmanager
def _lock() -> Iterator[None]:
    """One lab comes up or goes down at a time: they choose addresses by what the others have."""
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        namespaces.inherited.add(fd)
        yield
    finally:
        namespaces.inherited.discard(fd)
        os.close(fd)
