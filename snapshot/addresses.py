"""Giving a skeleton other addresses: the job is restored on other nodes than it was taken on.

Addresses are in files.img alone, as words of network-order bytes read in host order: one for IPv4,
four for IPv6 (images/sk-inet.proto, criu/sk-inet.c). The streams of TCP connections have none.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from cw_snapshot.snapshot import images

Address = IPv4Address | IPv6Address
_WORD = struct.Struct("=I")


class AddressMap:
    """What the addresses of the earlier allocation are now, for one tree.

    :param own: old addresses of the tree's node to those of its new node.
    :param peers: old addresses of all nodes to new ones. Where several trees of one node were parted,
        an address alone does not tell which of them is meant:
    :param endpoints: `ADDRESS:PORT` of old to the new address, and goes before `peers`.
    """

    def __init__(
        self,
        own: Mapping[str, str],
        peers: Mapping[str, str] | None = None,
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self._own = _parsed(own)
        self._peers = self._own if peers is None else _parsed(peers)
        self._endpoints = {
            (ipaddress.ip_address(host), int(port)): ipaddress.ip_address(new)
            for old, new in (endpoints or {}).items()
            for host, _, port in [old.rpartition(":")]
        }

    def source(self, address: Address) -> Address:
        """A local address of the tree. Those that are not mapped stay."""
        if (inner := _inner(address)) is not None:
            return _outer(self.source(inner))
        return self._own.get(address, address)

    def target(self, address: Address, port: int) -> Address:
        """The other end of a connection."""
        if (inner := _inner(address)) is not None:
            return _outer(self.target(inner, port))
        found = self._endpoints.get((address, port))
        return found if found is not None else self._peers.get(address, address)

    def source_text(self, endpoint: str) -> str:
        """A local endpoint ADDRESS:PORT as :func:`cw_snapshot.snapshot.describe.sockets` writes it."""
        host, _, port = endpoint.rpartition(":")
        try:
            return f"{self.source(ipaddress.ip_address(host))}:{port}"
        except ValueError:
            return endpoint

    def target_text(self, endpoint: str) -> str:
        """The other end of a connection, in the same form."""
        host, _, port = endpoint.rpartition(":")
        try:
            return f"{self.target(ipaddress.ip_address(host), int(port))}:{port}"
        except ValueError:
            return endpoint

    @property
    def changes(self) -> bool:
        """Whether anything is to be rewritten."""
        tables = (self._own, self._peers)
        return any(old != new for table in tables for old, new in table.items()) or bool(self._endpoints)


def _parsed(table: Mapping[str, str]) -> dict[Address, Address]:
    return {ipaddress.ip_address(old): ipaddress.ip_address(new) for old, new in table.items()}


def _inner(address: Address) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 one (::ffff:10.0.0.1), as a dual-stack socket has it."""
    return address.ipv4_mapped if isinstance(address, IPv6Address) else None


def _outer(address: Address) -> IPv6Address:
    return IPv6Address(f"::ffff:{address}")


def to_words(address: Address) -> list[int]:
    """As CRIU's images hold it."""
    return [word for (word,) in _WORD.iter_unpack(address.packed)]


def from_words(words: Sequence[int]) -> Address | None:
    """None for what is no address: a socket that was never bound has none."""
    data = b"".join(_WORD.pack(word) for word in words)
    if len(data) == 4:
        return IPv4Address(data)
    return IPv6Address(data) if len(data) == 16 else None


def rewrite(folder: Path, table: AddressMap) -> int:
    """Give every socket of a skeleton its new addresses. Returns how many sockets changed."""
    if not table.changes:
        return 0
    path = folder / "files.img"
    entries = images.load(path, "fdinfo", "file_entry")
    changed = 0
    for entry in entries:
        if entry.HasField("isk"):
            before = entry.isk.SerializeToString()
            source, target = from_words(entry.isk.src_addr), from_words(entry.isk.dst_addr)
            if source is not None:
                entry.isk.src_addr[:] = to_words(table.source(source))
            if target is not None:
                entry.isk.dst_addr[:] = to_words(table.target(target, entry.isk.dst_port))
            changed += entry.isk.SerializeToString() != before
    if changed:
        images.store(path, entries)
    return changed


def pair(old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """Old addresses of an interface to new ones, by family and in their order. Those for which there is
    none are left out."""
    table: dict[str, str] = {}
    for version in (4, 6):
        olds, news = (
            [text for text in texts if ipaddress.ip_address(text).version == version]
            for texts in (list(old), list(new))
        )
        table |= dict(zip(olds, news, strict=False))
    return table
