"""Ports that a job listened on: whether they are free on this machine, and who has them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.socket_peers import tcp_listeners


def findings(sockets: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """What stands in the way of a job's listening TCP sockets in our network namespace.

    :param sockets: as :func:`cw_snapshot.snapshot.describe.sockets` told them at the take.
    """
    for local in sorted({s["local"] for s in sockets if s["kind"] == "tcp" and s["state"] == "listening"}):
        address, _, port = local.rpartition(":")
        error = _try(address, int(port))
        if error == errno.EADDRINUSE:
            yield Finding(
                "port-in-use",
                Severity.REFUSAL,
                "a TCP port that the job listens on is in use here",
                f"{local}, {_holder(int(port))}",
                "end the process that has it, or restore on another node",
            )
        elif error == errno.EADDRNOTAVAIL:
            yield Finding(
                "no-such-address",
                Severity.REFUSAL,
                "the job listens on an address that this machine does not have",
                local,
                "restore on the node that has it, or give this one the address",
            )


def _try(address: str, port: int) -> int:
    """The errno of binding, or 0."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            # As criu does (criu/sk-inet.c): connections that linger and other jobs that share don't matter.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, port))
    except OSError as error:
        return error.errno or 0
    return 0


def _holder(port: int) -> str:
    """Who listens on a port, as far as can be seen."""
    wanted = {f"socket:[{inode}]" for inode in tcp_listeners(os.getpid(), port)}
    for pid in (int(name) for name in os.listdir(procfs.PROC) if name.isdigit()):
        with suppress(procfs.ProcessGoneError, PermissionError):
            for descriptor in procfs.descriptors(pid):
                if descriptor.target in wanted:
                    return f"by pid {pid} ({procfs.read_stat(pid).comm}) fd {descriptor.fd}"
    return "by an unknown process"
