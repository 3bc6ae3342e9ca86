"""A certificate authority for one lab, and certificates of its nodes and its coordinator."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cw_snapshot.lab.plan import LabPlan

COORDINATOR = "cw-snapshot-coordinator"
"""Common name that agents take commands from (coordinator/tls.py; a test compares them)."""
_VALID = timedelta(days=365)
_SKEW = timedelta(minutes=5)


def make(plan: LabPlan, folder: Path) -> None:
    """Write `ca.pem`, and NAME.pem and NAME.key of every node and of the coordinator. The authority's key
    is not kept: nobody can add to it later."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _name(f"cw-snapshot lab {plan.name}"[:64])
    certificate = (
        _builder(authority, authority, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _issue(folder, "coordinator", COORDINATOR, [], authority, key)
    for node in plan.members:
        addresses: list[x509.GeneralName] = [
            x509.DNSName(node.name),
            x509.IPAddress(ipaddress.ip_address(node.address)),
        ]
        _issue(folder, node.name, node.name, addresses, authority, key)


def _issue(
    folder: Path,
    file_name: str,
    common_name: str,
    names: Sequence[x509.GeneralName],
    authority: x509.Name,
    authority_key: ec.EllipticCurvePrivateKey,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(_name(common_name), authority, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    _write(folder / f"{file_name}.pem", certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / f"{file_name}.key", private)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
