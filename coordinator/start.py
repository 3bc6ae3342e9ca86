"""Starting a job: its environment and its tree."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cw_snapshot.coordinator.jobs import JobRecord, JobStore, new_record
from cw_snapshot.coordinator.limits import callers_limits
from cw_snapshot.coordinator.state import exclusive
from cw_snapshot.errors import UsageError
from cw_snapshot.snapshot.launch import User, end_tree, find_user, launch_job
from cw_snapshot.snapshot.native import program

_FIRST_PORT = 20000
_PORTS = 10000
"""Below the ephemeral range that begins at 32768 (net.ipv4.ip_local_port_range)."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What `cw-snapshot run` was asked for."""

    job: str
    command: Sequence[str]
    labels: Mapping[str, str]
    nproc_per_node: int | None = None
    user: str | None = None
    allow_io_uring: bool = False
    folder: Path = Path()


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether a command starts workers by itself with torch's launcher."""
    if Path(command[0]).name == "torchrun":
        return True
    return any(
        first == "-m" and second in ("torch.distributed.run", "torch.distributed.launch")
        for first, second in pairwise(command)
    )


def job_environment(
    base: Mapping[str, str], *, nnodes: int, node_rank: int, address: str, port: int
) -> dict[str, str]:
    """The environment of a job on one node.

    MASTER_ADDR and MASTER_PORT are kept when set. torchrun reads only its own PET_* variables
    (torch/distributed/run.py).
    """
    environment = dict(base)
    environment.setdefault("MASTER_ADDR", address)
    environment.setdefault("MASTER_PORT", str(port))
    environment |= {"NNODES": str(nnodes), "NODE_RANK": str(node_rank)}
    return environment | {
        "PET_NNODES": str(nnodes),
        "PET_NODE_RANK": str(node_rank),
        "PET_MASTER_ADDR": environment["MASTER_ADDR"],
        "PET_MASTER_PORT": environment["MASTER_PORT"],
    }


def free_port(job: str) -> int:
    """A port for the job's rendezvous: the same for the same job while it is free."""
    first = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % _PORTS
    for offset in range(_PORTS):
        port = _FIRST_PORT + (first + offset) % _PORTS
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise UsageError(what="no port is free for the job's rendezvous; set MASTER_PORT")


def _user_environment(base: Mapping[str, str], user: User | None) -> dict[str, str]:
    if user is None:
        return dict(base)
    return {**base, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}


def start_job(store: JobStore, request: StartRequest, environment: Mapping[str, str]) -> JobRecord:
    """Start a job on this node alone.

    :param environment: the caller's; the job inherits it.
    :raises JobRunsError: a job of that id runs.
    """
    job = job_environment(
        environment, nnodes=1, node_rank=0, address="127.0.0.1", port=free_port(request.job)
    )
    return start_tree(store, request, job, Place())


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of a job a tree is."""

    node_rank: int = 0
    nnodes: int = 1
    incarnation: int = 0
    """At least; the same on all nodes."""


def start_tree(
    store: JobStore, request: StartRequest, environment: Mapping[str, str], place: Place
) -> JobRecord:
    """Start a job's tree on this node.

    :param environment: of the job, complete but for its user's.
    :raises JobRunsError: a job of that id runs here.
    """
    command = list(request.command)
    if request.nproc_per_node is not None:
        if is_torchrun(command):
            raise UsageError(
                what="--nproc-per-node starts the ranks by itself; give it to torchrun instead "
                "(`-- torchrun --nproc-per-node ...`)"
            )
        ranks = [str(request.nproc_per_node), str(place.node_rank), str(place.nnodes)]
        command = [program("cw-ranks"), *ranks, "--", *command]
    user = None if request.user is None else find_user(request.user)
    with exclusive(store.lock_path(request.job), request.job):
        incarnation, own = store.next_incarnation(request.job, place.incarnation)
        log, status = own / "output.log", own / "status.json"
        with callers_limits():
            launched = launch_job(
                command,
                environment=_user_environment(environment, user),
                folder=request.folder.absolute(),
                log=log,
                status=status,
                user=user,
                allow_io_uring=request.allow_io_uring,
            )
        try:
            record = new_record(
                request.job,
                incarnation,
                launched,
                root=launched.command,
                command=list(request.command),
                folder=request.folder.absolute(),
                log=log,
                status=status,
                user=user.name if user else "",
                labels=request.labels,
            )
            store.save(record)
        except BaseException:
            end_tree(launched)  # nobody would know of it
            raise
    return record


def caller_environment() -> dict[str, str]:
    """Our own environment without what belongs to cw-snapshot."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CW_SNAPSHOT_")}
    if "CW_SNAPSHOT_OWN_OPENBLAS" in os.environ:
        kept.pop("OPENBLAS_NUM_THREADS", None)
    return kept
