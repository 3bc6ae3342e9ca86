"""Where the trees of a job go, and what becomes of their addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.coordinator.placement import OldTree, PlacementError, choose_nodes, member_names, place


def node(number: int, nics: int = 1) -> dict[str, list[str]]:
    return {f"eth{k}": [f"10.0.{k}.{number}", f"fd00:{k:x}::{number:x}"] for k in range(nics)}


def tree(number: int, *sockets: tuple[str, str], name: str = "") -> OldTree:
    """A tree on node `number` with connections, or listeners where the other end is empty."""
    return OldTree(
        name or f"n{number}",
        node(number),
        [
            {"kind": "tcp", "state": "established" if far else "listening", "local": near, "remote": far}
            for near, far in sockets
        ],
    )


NODES = {f"n{number}": node(number) for number in range(1, 9)}
PAIR = (
    tree(1, ("0.0.0.0:29400", ""), ("10.0.0.1:4000", "10.0.0.2:5000")),
    tree(2, ("10.0.0.2:5000", "10.0.0.1:4000")),
)


@given(st.integers(1, 50), st.integers(1, 50))
def test_every_tree_gets_a_node_and_every_node_a_tree(trees: int, nodes: int) -> None:
    names = [f"n{number}" for number in range(nodes)]
    if nodes > trees:
        with pytest.raises(PlacementError):
            choose_nodes(trees, names)
        return
    chosen = choose_nodes(trees, names)
    assert len(chosen) == trees
    assert list(dict.fromkeys(chosen)) == names  # neighbours stay together
    counts = [chosen.count(name) for name in names]
    assert max(counts) - min(counts) <= 1


def test_a_node_named_twice() -> None:
    with pytest.raises(PlacementError):
        choose_nodes(2, ["a", "a"])


def test_other_nodes() -> None:
    found = place(PAIR, ["n3", "n4"], NODES)
    assert found.trees[0].own == {"10.0.0.1": "10.0.0.3", "fd00:0::1": "fd00:0::3"}
    assert found.peers["10.0.0.2"] == "10.0.0.4"
    assert found.endpoints == {}
    assert found.former == found.peers
    table = found.addresses(1)
    assert table.source_text("10.0.0.2:5000") == "10.0.0.4:5000"
    assert table.target_text("10.0.0.1:4000") == "10.0.0.3:4000"


def test_a_swap_translates_nothing_later() -> None:
    """Each address means another node now: it can't mean its old one too."""
    found = place(PAIR, ["n2", "n1"], NODES)
    assert found.addresses(0).source_text("10.0.0.1:4000") == "10.0.0.2:4000"
    assert found.addresses(0).target_text("10.0.0.2:5000") == "10.0.0.1:5000"
    assert found.former == {}


def test_addresses_of_all_earlier_allocations_are_known() -> None:
    first = place(PAIR, ["n3", "n4"], NODES)
    moved = (
        tree(3, ("10.0.0.3:4000", "10.0.0.4:5000")),
        tree(4, ("10.0.0.4:5000", "10.0.0.3:4000")),
    )
    second = place(moved, ["n5", "n1"], NODES, first.former)
    assert second.former["10.0.0.3"] == "10.0.0.5"
    assert second.former["10.0.0.2"] == "10.0.0.1"
    assert "10.0.0.1" not in second.former  # the new node of the second tree


def test_a_connection_to_a_remembered_address_is_rewritten_too() -> None:
    """It was led there by a table; whoever dialled still has the address that it dialled."""
    first = place(PAIR, ["n3", "n4"], NODES)
    moved = (
        tree(3, ("0.0.0.0:29400", ""), ("10.0.0.3:29400", "10.0.0.4:7000")),
        tree(4, ("10.0.0.4:7000", "10.0.0.1:29400")),
    )
    second = place(moved, ["n5", "n1"], NODES, first.former)
    assert second.addresses(1).target_text("10.0.0.1:29400") == "10.0.0.5:29400"
    assert second.addresses(0).target_text("10.0.0.4:7000") == "10.0.0.1:7000"
    together = place(moved, ["n5", "n5"], NODES, first.former)
    on_one = (
        tree(5, ("0.0.0.0:29400", ""), ("10.0.0.5:6000", "10.0.0.5:7000"), name="n5"),
        tree(5, ("10.0.0.5:7000", "10.0.0.5:6000"), ("10.0.0.5:8000", "10.0.0.2:7000"), name="n5"),
    )
    parted = place(on_one, ["n3", "n4"], NODES, together.former)
    assert parted.addresses(1).target_text("10.0.0.2:7000") == "10.0.0.4:7000"


def test_two_trees_on_one_node_and_parted_again() -> None:
    together = place(PAIR, ["n3", "n3"], NODES)
    assert together.addresses(0).target_text("10.0.0.2:5000") == "10.0.0.3:5000"
    on_one = (
        tree(3, ("0.0.0.0:29400", ""), ("10.0.0.3:4000", "10.0.0.3:5000"), name="n3"),
        tree(3, ("10.0.0.3:5000", "10.0.0.3:4000"), name="n3"),
    )
    parted = place(on_one, ["n4", "n5"], NODES)
    assert parted.addresses(0).source_text("10.0.0.3:4000") == "10.0.0.4:4000"
    assert parted.addresses(0).target_text("10.0.0.3:5000") == "10.0.0.5:5000"
    assert parted.addresses(1).source_text("10.0.0.3:5000") == "10.0.0.5:5000"
    assert parted.addresses(1).target_text("10.0.0.3:4000") == "10.0.0.4:4000"
    assert parted.former["10.0.0.3"] == "10.0.0.4"


def test_ports_that_both_would_have_are_refused() -> None:
    both = (tree(1, ("0.0.0.0:8000", "")), tree(2, ("0.0.0.0:8000", "")))
    place(both, ["n3", "n4"], NODES)
    with pytest.raises(PlacementError) as refused:
        place(both, ["n3", "n3"], NODES)
    assert refused.value.evidence == ["trees 0 and 1 would both have tcp 0.0.0.0:8000 on n3"]


def test_an_address_without_a_counterpart_is_refused_only_if_it_is_used() -> None:
    fewer = {"n3": {"eth0": ["10.0.0.3"]}}
    two_nics = OldTree(
        "n1", node(1, nics=2), [{"kind": "tcp", "state": "", "local": "10.0.0.1:1", "remote": ""}]
    )
    assert place([two_nics], ["n3"], fewer).trees[0].own == {"10.0.0.1": "10.0.0.3"}
    uses_second = OldTree(
        "n1", node(1, nics=2), [{"kind": "udp", "state": "", "local": "10.0.1.1:1", "remote": ""}]
    )
    with pytest.raises(PlacementError) as refused:
        place([uses_second], ["n3"], fewer)
    assert refused.value.evidence == ["tree 0: it uses 10.0.1.1 of n1; n3 has none for it"]


def test_interfaces_of_other_names_in_their_order() -> None:
    found = place([tree(1)], ["x"], {"x": {"ens5": ["172.16.0.9"]}})
    assert found.trees[0].own == {"10.0.0.1": "172.16.0.9"}


def test_member_names() -> None:
    assert member_names(["a", "b"]) == ["a", "b"]
    assert member_names(["a", "b", "a"]) == ["a#0", "b", "a#2"]
