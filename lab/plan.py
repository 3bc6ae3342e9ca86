"""What a lab looks like: names and addresses. Pure.

    host ── cwl-1a2b3c4d ─┐
                          │ mgmt                      the namespace `cwlab-NAME.switch`
              br-mgmt ────┴──┬──────────┬──           holds all bridges
              br-eth0 ────┬──│───────┬──│──
              br-eth1 ──┬─│──│─────┬─│──│──
                       node n1     node n2            namespaces `cwlab-NAME.n1`, …
                       eth1 eth0 mgmt0

The bridges live in a namespace of their own: the host gets one interface, no rule of its firewall
sees the job's traffic, and deleting the namespaces leaves nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2s
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network

MOST_NODES = 200
MOST_NICS = 16
MANAGEMENT = "mgmt0"
"""Name of the management NIC in every node. It is never cut."""
HOST_PORT = "host"
"""Name, in the switch, of the link to the host."""

_FIRST_BLOCK, _BLOCKS = 64, 64
"""Labs take 10.64.0.0/16 to 10.127.0.0/16."""
_MANAGEMENT_NET = 255
_HOST_NUMBER = 254


@dataclass(frozen=True, slots=True)
class Port:
    """One NIC of a node, and the port of the bridge that its cable leads to."""

    nic: str
    bridge: str
    name: str
    """Of the port in the switch."""
    ipv4: IPv4Interface
    ipv6: IPv6Interface


@dataclass(frozen=True, slots=True)
class Node:
    """One node."""

    name: str
    namespace: str
    management: Port
    nics: tuple[Port, ...]

    @property
    def address(self) -> str:
        """Of its management NIC: where its agent listens."""
        return str(self.management.ipv4.ip)

    def nic(self, name: str) -> Port | None:
        return next((port for port in self.nics if port.nic == name), None)


@dataclass(frozen=True, slots=True)
class LabPlan:
    """A lab of `nodes` nodes with `nics` NICs each, on the addresses of `block`."""

    name: str
    nodes: int
    nics: int
    block: int

    @property
    def switch(self) -> str:
        """Namespace of the bridges."""
        return f"cwlab-{self.name}.switch"

    @property
    def host_interface(self) -> str:
        return host_interface(self.name)

    @property
    def host_address(self) -> IPv4Interface:
        return self._ipv4(_MANAGEMENT_NET, _HOST_NUMBER)

    @property
    def gateway(self) -> str:
        """The nodes' default gateway: nobody is there. A node without a default route could not even
        try to reach an address of an earlier allocation."""
        return str(self._ipv4(0, _HOST_NUMBER).ip)

    @property
    def bridges(self) -> tuple[str, ...]:
        return ("br-mgmt", *(f"br-eth{nic}" for nic in range(self.nics)))

    @property
    def members(self) -> tuple[Node, ...]:
        return tuple(self._node(number) for number in range(1, self.nodes + 1))

    def node(self, name: str) -> Node | None:
        return next((node for node in self.members if node.name == name), None)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them, the switch last."""
        return (*(node.namespace for node in self.members), self.switch)

    def _node(self, number: int) -> Node:
        name = f"n{number}"
        management = self._port(number, MANAGEMENT, "br-mgmt", _MANAGEMENT_NET)
        nics = (self._port(number, f"eth{k}", f"br-eth{k}", k) for k in range(self.nics))
        return Node(name, f"cwlab-{self.name}.{name}", management, tuple(nics))

    def _port(self, node: int, nic: str, bridge: str, net: int) -> Port:
        ipv6 = IPv6Network(f"fd63:7700:{self.block:x}:{net:x}::/64")
        return Port(
            nic, bridge, f"n{node}-{nic}", self._ipv4(net, node), IPv6Interface((int(ipv6[node]), 64))
        )

    def _ipv4(self, net: int, host: int) -> IPv4Interface:
        return IPv4Interface(f"10.{self.block}.{net}.{host}/24")


def host_interface(lab: str) -> str:
    """The lab's interface on the host; at most 15 characters (IFNAMSIZ), whatever the name."""
    return "cwl-" + blake2s(lab.encode(), digest_size=4).hexdigest()


def belongs(namespace: str, lab: str) -> bool:
    """Whether a namespace of that name is one of this lab's."""
    return re.fullmatch(rf"cwlab-{re.escape(lab)}\.(n\d+|switch)", namespace) is not None


def network(block: int) -> IPv4Network:
    """All addresses of one block."""
    return IPv4Network(f"10.{block}.0.0/16")


def free_block(used: Iterable[IPv4Network], preferred: int = 0) -> int | None:
    """A block that overlaps no network that is in use; None when there is none.

    :param used: addresses and routes of the host, blocks of other labs. A default route
        (0.0.0.0/0) leads everywhere and takes nothing away.
    :param preferred: where to begin, so that labs that come up at the same time rarely meet.
    """
    taken = [net for net in used if net.prefixlen > 0]
    for step in range(_BLOCKS):
        block = _FIRST_BLOCK + (preferred + step) % _BLOCKS
        if not any(network(block).overlaps(net) for net in taken):
            return block
    return None


def parse_network(text: str) -> IPv4Network | None:
    """`10.1.0.0/16`, `10.1.2.3/24` or `10.1.2.3`; None for `default` and for IPv6."""
    try:
        parsed = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    return parsed if isinstance(parsed, IPv4Network) else None
