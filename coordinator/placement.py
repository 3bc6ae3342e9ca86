"""Where the trees of a job go at a restore, and what that makes of their addresses. Pure.

A tree is what is moved: it is restored as a whole on one node. A node may have several, and the trees
of one old node may go to different new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.addresses import AddressMap, pair

Interfaces = Mapping[str, Sequence[str]]
"""Addresses of a node by interface, in its order."""


class PlacementError(CwError):
    """The trees of the job can't be restored on {nodes}.

    Fix: name other nodes, or as many as the job has trees.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class OldTree:
    """A tree as it was taken."""

    node: str
    interfaces: Interfaces
    sockets: Sequence[Mapping[str, str]]
    """Of :func:`cw_snapshot.snapshot.describe.sockets`."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tree and where it goes."""

    tree: int
    old_node: str
    node: str
    own: dict[str, str]
    """Addresses of its old node, and what they are now."""


@dataclass(frozen=True, slots=True)
class Placement:
    """All trees of a job."""

    trees: list[Placed]
    peers: dict[str, str]
    """Every old address, and where it leads now: to the tree of the lowest number that had it. Those of the
    allocations before among them."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """ADDRESS:PORT, and the address now, where an old address was several trees' that were parted."""
    former: dict[str, str] = field(default_factory=dict)
    """Every address that a node of the job ever had, and where it leads now. Those that a node of the
    job has now are left out: they mean that node."""

    def addresses(self, tree: int) -> AddressMap:
        return AddressMap(self.trees[tree].own, self.peers, self.endpoints)


def choose_nodes(trees: int, nodes: Sequence[str]) -> list[str]:
    """A node for each tree, in the order of the trees. With fewer nodes than trees neighbours go
    together; the first nodes get the more.

    :raises PlacementError: there are more nodes than trees.
    """
    if not 1 <= len(nodes) <= trees or len(set(nodes)) != len(nodes):
        why = f"{len(nodes)} nodes are named, the job has {trees} trees, each of which goes to one node"
        raise PlacementError(nodes=", ".join(nodes), evidence=[why])
    few, more = divmod(trees, len(nodes))
    return [node for at, node in enumerate(nodes) for _ in range(few + (at < more))]


def place(
    old: Sequence[OldTree],
    nodes: Sequence[str],
    interfaces: Mapping[str, Interfaces],
    former: Mapping[str, str] | None = None,
) -> Placement:
    """Work out the addresses of a job on its new nodes.

    :param nodes: one for each tree.
    :param interfaces: of each new node.
    :param former: `Placement.former` of the restore that made the job which was taken: it still knows
        addresses of the allocation before, for example by its MASTER_ADDR.
    :raises PlacementError: an address that the job uses has no counterpart, or two trees on one node
        would have the same port.
    """
    placed = [
        Placed(number, tree.node, node, _own(tree.interfaces, interfaces[node]))
        for number, (tree, node) in enumerate(zip(old, nodes, strict=True))
    ]
    peers: dict[str, str] = {}
    for tree in placed:
        for address, now in tree.own.items():
            peers.setdefault(address, now)
    endpoints = {}
    for tree, before in zip(placed, old, strict=True):
        for socket in before.sockets:
            host, _, port = socket["local"].rpartition(":")
            if host in tree.own and tree.own[host] != peers[host]:
                endpoints[f"{host}:{port}"] = tree.own[host]
    # A connection that was led there by a table of the last restore still has the address that was dialled.
    for address, then in (former or {}).items():
        if address not in peers and then in peers:
            peers[address] = peers[then]
            endpoints |= {
                f"{address}:{endpoint.rpartition(':')[2]}": now
                for endpoint, now in endpoints.items()
                if endpoint.rpartition(":")[0] == then
            }
    now_used = {a for node in nodes for addresses in interfaces[node].values() for a in addresses}
    leads = {**{a: peers.get(then, then) for a, then in (former or {}).items()}, **peers}
    placement = Placement(placed, peers, endpoints, {a: now for a, now in leads.items() if a not in now_used})
    if evidence := [*_unmapped(old, placement), *_collisions(old, placement)]:
        raise PlacementError(nodes=", ".join(dict.fromkeys(nodes)), evidence=evidence)
    return placement


def _own(old: Interfaces, new: Interfaces) -> dict[str, str]:
    """Interfaces of the same name belong together, others in their order."""
    left = [name for name in new if name not in old]
    table: dict[str, str] = {}
    for name, addresses in old.items():
        partner = name if name in new else (left.pop(0) if left else None)
        if partner is not None:
            table |= pair(addresses, new[partner])
    return table


def _unmapped(old: Sequence[OldTree], placement: Placement) -> list[str]:
    """Addresses of old nodes that the job uses and that have no counterpart."""
    found = []
    for number, tree in enumerate(old):
        lost = {a for addresses in tree.interfaces.values() for a in addresses} - set(
            placement.trees[number].own
        )
        used = {socket["local"].rpartition(":")[0] for socket in tree.sockets}
        new = placement.trees[number].node
        found += [f"tree {number}: it uses {a} of {tree.node}; {new} has none for it" for a in lost & used]
    return found


def _collisions(old: Sequence[OldTree], placement: Placement) -> list[str]:
    """Ports that two trees on one node would both have: listeners, and connections with the same ends."""
    users: dict[tuple[str, str, str, str], list[int]] = {}
    for number, tree in enumerate(old):
        table = placement.addresses(number)
        node = placement.trees[number].node
        seen = set()
        for socket in tree.sockets:
            if socket["kind"] not in ("tcp", "udp"):
                continue
            remote = socket["remote"] if socket["state"] != "listening" else ""
            seen.add((node, socket["kind"], table.source_text(socket["local"]), table.target_text(remote)))
        for key in seen:
            users.setdefault(key, []).append(number)
    return [
        f"trees {' and '.join(map(str, numbers))} would both have {kind} {local}"
        + (f" to {remote}" if remote else "")
        + f" on {node}"
        for (node, kind, local, remote), numbers in users.items()
        if len(numbers) > 1 and local.rpartition(":")[2] != "0"
    ]


def member_names(nodes: Sequence[str]) -> list[str]:
    """A name for each tree: that of its node, with its number where a node has several."""
    count = Counter(nodes)
    return [node if count[node] == 1 else f"{node}#{tree}" for tree, node in enumerate(nodes)]
