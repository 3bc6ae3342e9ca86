"""Mutual TLS between the coordinator and the agents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from cw_snapshot.errors import CwError, ExitCode

COORDINATOR = "cw-snapshot-coordinator"
"""Common name of certificates that may command agents. A node's own certificate may not: one node that
is broken into does not command the others."""


class CertificateError(CwError):
    """{path} can't be used: {why}

    Fix: `cw-snapshot lab up` makes certificates for a lab; on a cluster see docs/agents.md.
    """

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, and whose signature we trust. PEM files; the key is readable by root alone."""

    authority: Path
    certificate: Path
    key: Path

    def server(self) -> grpc.ServerCredentials:
        pair = (_read(self.key), _read(self.certificate))
        return grpc.ssl_server_credentials([pair], _read(self.authority), require_client_auth=True)

    def client(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            _read(self.authority), private_key=_read(self.key), certificate_chain=_read(self.certificate)
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(path=path, why=error.strerror) from error
