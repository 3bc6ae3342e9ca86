"""The other ends of a tree's sockets: a snapshot holds one end only of a connection to outside.

Sources: proc_net_tcp (Documentation/networking/proc_net_tcp.rst) and sock_diag(7), unix_diag.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from cw_snapshot.snapshot.procfs import PROC

_ESTABLISHED = {"01", "04", "05", "08"}
"""States of /proc/net/tcp with a living other end: established, fin-wait-1 and -2, close-wait."""

_LISTEN = "0A"

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_UDIAG_SHOW_PEER = 0x4
_UNIX_DIAG_PEER = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")
_NETLINK_SOCK_DIAG = 4


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """A living TCP connection, as /proc/PID/net/tcp shows it."""

    local: tuple[str, int]
    remote: tuple[str, int]
    inode: int

    def __str__(self) -> str:
        return f"{self.local[0]}:{self.local[1]} -> {self.remote[0]}:{self.remote[1]}"


def _address(text: str) -> tuple[str, int]:
    """`0100007F:1F90`: 32-bit words in the order of this machine."""
    digits, port = text.split(":")
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    address = ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)


def _tcp_rows(pid: int) -> Iterator[list[str]]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = (PROC / str(pid) / "net" / name).read_text().splitlines()[1:]
            yield from (line.split() for line in lines)


def tcp_connections(pid: int) -> Iterator[TcpConnection]:
    """The TCP connections of a process's network namespace."""
    for words in _tcp_rows(pid):
        if words[3] in _ESTABLISHED:
            yield TcpConnection(_address(words[1]), _address(words[2]), int(words[9]))


def tcp_listeners(pid: int, port: int) -> list[int]:
    """Inodes of the sockets of a process's network namespace that listen on a port."""
    return [int(w[9]) for w in _tcp_rows(pid) if w[3] == _LISTEN and _address(w[1])[1] == port]


def tcp_to_outside(pid: int, ours: Collection[int]) -> list[TcpConnection]:
    """Connections with one end among the sockets `ours` (inodes) and the other elsewhere."""
    found = list(tcp_connections(pid))
    # One that nobody has accepted yet has no inode.
    inside = {(c.local, c.remote) for c in found if c.inode in ours or not c.inode}
    return [c for c in found if c.inode in ours and (c.remote, c.local) not in inside]


def unix_peers() -> dict[int, int]:
    """Inode of the other end of each connected unix socket of our network namespace, by inode."""
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UDIAG_SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    size = _HEADER.size + len(request)
    peers: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as sock:
        sock.settimeout(5)
        sock.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0) + request)
        while True:
            data = sock.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, _, _, _ = _HEADER.unpack_from(data, at)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return peers
                inode = _MESSAGE.unpack_from(data, at + _HEADER.size)[4]
                if peer := _peer(data[at + _HEADER.size + _MESSAGE.size : at + length]):
                    peers[inode] = peer
                at += -(-length // 4) * 4


SOCK_STREAM = 1


def unix_sockets(pid: int) -> dict[int, int]:
    """The type of each unix socket of a process's network namespace, by inode."""
    lines = (PROC / str(pid) / "net" / "unix").read_text(errors="replace").splitlines()[1:]
    rows = (line.split() for line in lines)
    return {int(words[6]): int(words[4], 16) for words in rows}


def _peer(attributes: bytes) -> int:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == _UNIX_DIAG_PEER:
            return int.from_bytes(attributes[at + 4 : at + 8], "little")
        at += max(-(-length // 4) * 4, 4)
    return 0
