"""Making the namespaces, bridges and cables of a lab, and looking at them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.lab import namespaces
from cw_snapshot.lab.plan import HOST_PORT, LabPlan, Node, Port, belongs, host_interface, parse_network

_NODE_SETTINGS = (
    # One interface must not answer for the addresses of another one.
    ("net.ipv4.conf.all.arp_ignore", "1"),
    ("net.ipv4.conf.all.arp_announce", "2"),
)


class NoSuchNicError(CwError):
    """Node {node} has no NIC {nic}; it has {nics}.

    Fix: name one of these. The management NIC can't be cut: agents live there.
    """

    exit_code = ExitCode.USAGE


class Link(StrEnum):
    """How a cable stands."""

    UP = "up"
    CUT = "cut"
    """No carrier: the node's kernel knows."""
    SILENT = "cut silently"
    """Carrier, but every frame is dropped."""


@dataclass(frozen=True, slots=True)
class NicState:
    """One NIC of one node."""

    nic: str
    ipv4: str
    ipv6: str
    link: Link

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def networks_in_use() -> Iterator[IPv4Network]:
    """Addresses and routes of the host, in every routing table."""
    for route in json.loads(namespaces.ip("-json", "route", "show", "table", "all") or "[]"):
        if (net := parse_network(route.get("dst", ""))) is not None:
            yield net
    for interface in json.loads(namespaces.ip("-json", "-4", "address", "show") or "[]"):
        for address in interface.get("addr_info", []):
            if (net := parse_network(f"{address['local']}/{address['prefixlen']}")) is not None:
                yield net


def make(plan: LabPlan) -> None:
    """Make everything of a lab. Nothing of it may exist."""
    for name in plan.namespaces:
        namespaces.ip("netns", "add", name)
    namespaces.batch(_switch(plan), namespace=plan.switch)
    host = plan.host_interface
    namespaces.batch(
        [
            f"link add {host} type veth peer name {HOST_PORT} netns {plan.switch}",
            f"address add {plan.host_address} dev {host}",
            f"link set {host} up",
        ]
    )
    namespaces.batch(
        [f"link set {HOST_PORT} master br-mgmt", f"link set {HOST_PORT} up"], namespace=plan.switch
    )
    for node in plan.members:
        _make_node(plan, node)


def _switch(plan: LabPlan) -> Iterator[str]:
    yield "link set lo up"
    for bridge in plan.bridges:
        yield f"link add {bridge} type bridge mcast_snooping 0"
        yield f"link set {bridge} up"
    for node in plan.members:
        for port in (node.management, *node.nics):
            yield f"link add {port.name} type veth peer name {port.nic} netns {node.namespace}"
            yield f"link set {port.name} master {port.bridge}"
            yield f"link set {port.name} up"


def _make_node(plan: LabPlan, node: Node) -> None:
    script = "; ".join(f"echo {value} >/proc/sys/{name.replace('.', '/')}" for name, value in _NODE_SETTINGS)
    namespaces.run([*namespaces.entering(node.namespace), "sh", "-c", script])
    commands = ["link set lo up"]
    for port in (node.management, *node.nics):
        commands += [
            f"address add {port.ipv4} dev {port.nic}",
            # Ours alone: no second of looking for somebody else who has it.
            f"address add {port.ipv6} dev {port.nic} nodad",
            f"link set {port.nic} up",
        ]
    if node.nics:
        commands.append(f"route add default via {plan.gateway} dev {node.nics[0].nic} onlink")
    namespaces.batch(commands, namespace=node.namespace)


def remove(lab: str) -> None:
    """Remove everything that a lab of that name has left, also of a half-made one."""
    # The host's end of the cable goes first: a namespace dies only when its last process has.
    if host_interface(lab) in _host_cables():
        namespaces.ip("link", "delete", host_interface(lab))
    namespaces.delete(namespaces_of(lab))


def namespaces_of(lab: str) -> list[str]:
    """Names of the namespaces that a lab has now, or had half-made."""
    return [name for name in namespaces.names() if belongs(name, lab)]


def missing(plan: LabPlan) -> list[str]:
    """What a lab that was made completely lacks now."""
    found = [f"namespace {name}" for name in plan.namespaces if not namespaces.exists(name)]
    if plan.host_interface not in _host_cables():
        found.append(f"interface {plan.host_interface}")
    return found


def _host_cables() -> set[str]:
    shown = namespaces.ip("-json", "link", "show", "type", "veth")
    return {link["ifname"] for link in json.loads(shown or "[]")}


def cut(plan: LabPlan, node: Node, nic: str, *, silent: bool) -> None:
    """Cut one cable: without carrier, as when it is pulled, or silently, as when a switch drops frames."""
    port = _port(node, nic)
    if silent:
        _set_forwarding(plan, port, on=False)
    else:
        namespaces.ip("-n", plan.switch, "link", "set", port.name, "down")


def mend(plan: LabPlan, node: Node, nic: str) -> None:
    """Undo any cut."""
    port = _port(node, nic)
    namespaces.ip("-n", plan.switch, "link", "set", port.name, "up")
    _set_forwarding(plan, port, on=True)


def _port(node: Node, nic: str) -> Port:
    port = node.nic(nic)
    if port is None:
        raise NoSuchNicError(node=node.name, nic=nic, nics=", ".join(p.nic for p in node.nics))
    return port


def _set_forwarding(plan: LabPlan, port: Port, *, on: bool) -> None:
    """A bridge drops every frame from and to a port in state "disabled" and leaves its carrier alone
    (net/bridge/br_stp.c, br_set_state; 0 is disabled, 3 forwarding)."""
    namespaces.run(
        ["bridge", "-n", plan.switch, "link", "set", "dev", port.name, "state", "3" if on else "0"]
    )


def links(plan: LabPlan) -> dict[str, Link]:
    """State of every port of the switch, by its name."""
    states = {}
    shown = namespaces.ip("-n", plan.switch, "-json", "-details", "link", "show", "type", "veth")
    for port in json.loads(shown or "[]"):
        data = port.get("linkinfo", {}).get("info_slave_data", {})
        if "UP" not in port["flags"]:
            states[port["ifname"]] = Link.CUT
        elif data.get("state") != "forwarding":
            states[port["ifname"]] = Link.SILENT
        else:
            states[port["ifname"]] = Link.UP
    return states


def nics(node: Node, links_now: dict[str, Link]) -> list[NicState]:
    """The NICs of a node and how their cables stand."""
    return [
        NicState(p.nic, str(p.ipv4.ip), str(p.ipv6.ip), links_now.get(p.name, Link.CUT)) for p in node.nics
    ]
