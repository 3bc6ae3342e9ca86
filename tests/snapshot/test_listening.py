"""Ports of a job that are in use."""

from __future__ import annotations

import os
import socket

import pytest

from cw_snapshot.snapshot import listening


def told(local: str) -> list[dict[str, str]]:
    return [{"kind": "tcp", "state": "listening", "local": local, "remote": ""}] * 2


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_in_use_and_free(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        local = f"{address}:{server.getsockname()[1]}"
        (finding,) = listening.findings(told(local))
        assert finding.code == "port-in-use"
        assert finding.evidence.startswith(f"{local}, by pid {os.getpid()} (")
        assert finding.evidence.endswith(f" fd {server.fileno()}")
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
    accepted.close()  # lingers
    client.close()
    assert list(listening.findings(told(local))) == []


def test_other_sockets_do_not_matter() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        local = f"127.0.0.1:{server.getsockname()[1]}"
        established = [{"kind": "tcp", "state": "established", "local": local, "remote": local}]
        udp = [{"kind": "udp", "state": "", "local": local, "remote": ""}]
        assert list(listening.findings([*established, *udp])) == []


def test_a_foreign_address() -> None:
    (finding,) = listening.findings(told("192.0.2.1:80"))
    assert finding.code == "no-such-address"
