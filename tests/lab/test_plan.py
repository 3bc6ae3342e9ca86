"""Names and addresses of a lab."""

from __future__ import annotations

from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.lab.plan import (
    MOST_NICS,
    MOST_NODES,
    LabPlan,
    belongs,
    free_block,
    host_interface,
    network,
    parse_network,
)

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@given(names, st.integers(1, MOST_NODES), st.integers(1, MOST_NICS), st.integers(64, 127))
def test_every_address_is_of_the_block_and_of_one_nic(name: str, nodes: int, nics: int, block: int) -> None:
    plan = LabPlan(name, nodes, nics, block)
    ports = [port for node in plan.members for port in (node.management, *node.nics)]
    addresses = [plan.host_address.ip, *(port.ipv4.ip for port in ports)]
    assert len(set(addresses)) == len(addresses)
    assert all(address in network(block) for address in addresses)
    assert len({port.ipv6.ip for port in ports}) == len(ports)
    assert plan.gateway not in map(str, addresses)


@given(names, st.integers(1, MOST_NODES), st.integers(1, MOST_NICS))
def test_interface_names_are_short_and_unique(name: str, nodes: int, nics: int) -> None:
    plan = LabPlan(name, nodes, nics, 64)
    in_switch = [*plan.bridges, *(p.name for n in plan.members for p in (n.management, *n.nics))]
    assert len(set(in_switch)) == len(in_switch)
    assert max(map(len, [*in_switch, host_interface(name)])) <= 15


@given(names, names)
def test_labs_do_not_take_each_others_namespaces(one: str, other: str) -> None:
    plan = LabPlan(one, 3, 1, 64)
    assert all(belongs(namespace, one) for namespace in plan.namespaces)
    if one != other:
        assert not any(belongs(namespace, other) for namespace in plan.namespaces)


def test_a_lab_named_like_anothers_node() -> None:
    assert not any(belongs(namespace, "a") for namespace in LabPlan("a.n1", 2, 1, 64).namespaces)


@given(st.lists(st.integers(60, 130)), st.integers(0, 1000))
def test_a_free_block_overlaps_nothing(taken: list[int], preferred: int) -> None:
    used = [IPv4Network(f"10.{block}.7.0/24") for block in taken]
    found = free_block(used, preferred)
    if found is None:
        assert set(range(64, 128)) <= set(taken)
    else:
        assert 64 <= found < 128
        assert found not in taken


def test_a_default_route_takes_nothing_and_a_wide_one_all() -> None:
    assert free_block([IPv4Network("0.0.0.0/0")]) == 64
    assert free_block([IPv4Network("10.0.0.0/8")]) is None
    assert free_block([IPv4Network("10.64.0.0/10")]) is None


def test_parse_network() -> None:
    assert parse_network("10.1.2.3/16") == IPv4Network("10.1.0.0/16")
    assert parse_network("10.1.2.3") == IPv4Network("10.1.2.3/32")
    assert parse_network("default") is None
    assert parse_network("fe80::/64") is None
