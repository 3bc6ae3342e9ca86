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
    """What each address of the earlier allocation is now. The same for all trees of a job, also for
    connections of a node with itself.

    :param table: text of the old address to text of the new one, of the same family each.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = {ipaddress.ip_address(old): ipaddress.ip_address(new) for old, new in table.items()}

    def __getitem__(self, address: Address) -> Address:
        """The new address; those that are not mapped stay. IPv4 inside IPv6 (::ffff:10.0.0.1) follows."""
        if isinstance(address, IPv6Address) and (inner := address.ipv4_mapped) is not None:
            return IPv6Address(f"::ffff:{self[inner]}")
        return self._table.get(address, address)

    def text(self, endpoint: str) -> str:
        """An endpoint ADDRESS:PORT as :func:`cw_snapshot.snapshot.describe.sockets` writes it."""
        host, _, port = endpoint.rpartition(":")
        try:
            return f"{self[ipaddress.ip_address(host)]}:{port}"
        except ValueError:
            return endpoint

    @property
    def changes(self) -> dict[Address, Address]:
        """Those that differ."""
        return {old: new for old, new in self._table.items() if old != new}


def to_words(address: Address) -> list[int]:
    """As CRIU's images hold it."""
    return [word for (word,) in _WORD.iter_unpack(address.packed)]


def from_words(words: Sequence[int]) -> Address | None:
    """None for what is no address: a socket that was never bound has none."""
    data = b"".join(_WORD.pack(word) for word in words)
    if len(data) == 4:
        return IPv4Address(data)
    return IPv6Address(data) if len(data) == 16 else None


def _mapped(words: Sequence[int], table: AddressMap) -> list[int]:
    address = from_words(words)
    return list(words) if address is None else to_words(table[address])


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
            entry.isk.src_addr[:] = _mapped(entry.isk.src_addr, table)
            entry.isk.dst_addr[:] = _mapped(entry.isk.dst_addr, table)
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
