"""Addresses of a skeleton are given new ones."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.addresses import AddressMap, from_words, pair, rewrite, to_words
from cw_snapshot.snapshot.old_addresses import rules

addresses = st.ip_addresses()


def test_words_as_criu_writes_them() -> None:
    assert to_words(ipaddress.ip_address("10.77.0.1")) == [16796938]
    assert to_words(ipaddress.ip_address("::ffff:10.77.0.1")) == [0, 0, 0xFFFF0000, 16796938]
    assert from_words([]) is None


@given(addresses)
def test_words_and_back(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert from_words(to_words(address)) == address


@given(st.dictionaries(addresses, addresses, max_size=8), addresses)
def test_the_map(
    table: dict[ipaddress.IPv4Address, ipaddress.IPv4Address], other: ipaddress.IPv4Address
) -> None:
    table = {
        old: new
        for old, new in table.items()
        if old.version == new.version and getattr(old, "ipv4_mapped", None) is None
    }
    found = AddressMap({str(old): str(new) for old, new in table.items()})
    for old, new in table.items():
        assert found.source(old) == found.target(old, 80) == new
        if old.version == 4:
            outer = ipaddress.IPv6Address(f"::ffff:{old}")
            assert found.source(outer) == found.target(outer, 80) == ipaddress.IPv6Address(f"::ffff:{new}")
    if other not in table and getattr(other, "ipv4_mapped", None) is None:
        assert found.source(other) == other


def test_a_swap_is_a_swap() -> None:
    """Each address is looked up once: what was given a new one is not mapped again."""
    swap = AddressMap({"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"})
    assert swap.source_text("10.0.0.1:80") == "10.0.0.2:80"
    assert swap.source_text("10.0.0.2:80") == "10.0.0.1:80"
    assert swap.source_text("*:80") == "*:80"


def test_trees_of_one_node_that_are_parted() -> None:
    """Both had 10.0.0.1; which one is meant tells the port."""
    table = AddressMap({"10.0.0.1": "10.9.0.1"}, {"10.0.0.1": "10.9.0.1"}, {"10.0.0.1:4000": "10.9.0.2"})
    old = ipaddress.ip_address("10.0.0.1")
    assert str(table.source(old)) == "10.9.0.1"
    assert str(table.target(old, 4000)) == "10.9.0.2"
    assert str(table.target(ipaddress.ip_address("::ffff:10.0.0.1"), 4000)) == str(
        ipaddress.ip_address("::ffff:10.9.0.2")
    )
    assert str(table.target(old, 4001)) == "10.9.0.1"


def test_addresses_are_paired_by_family() -> None:
    assert pair(["10.0.0.1", "fd00::1"], ["fd01::9", "10.1.0.9"]) == {
        "10.0.0.1": "10.1.0.9",
        "fd00::1": "fd01::9",
    }
    assert pair(["10.0.0.1", "10.0.0.2"], ["10.1.0.9"]) == {"10.0.0.1": "10.1.0.9"}


def _skeleton(folder: Path, pairs: list[tuple[str, str]]) -> None:
    entries = []
    for number, (source, target) in enumerate(pairs):
        entry = images.message("fdinfo", "file_entry")()
        entry.type, entry.id = (
            images.message("fdinfo", "file_entry")
            .DESCRIPTOR.fields_by_name["type"]
            .enum_type.values_by_name["INETSK"]
            .number,
            number,
        )
        isk = entry.isk
        for name in (
            "id",
            "ino",
            "family",
            "type",
            "proto",
            "state",
            "src_port",
            "dst_port",
            "flags",
            "backlog",
        ):
            setattr(isk, name, 1)
        isk.src_addr.extend(to_words(ipaddress.ip_address(source)))
        isk.dst_addr.extend(to_words(ipaddress.ip_address(target)))
        isk.fown.uid = isk.fown.euid = isk.fown.signum = isk.fown.pid_type = isk.fown.pid = 0
        isk.opts.so_sndbuf = isk.opts.so_rcvbuf = isk.opts.so_snd_tmo_sec = isk.opts.so_snd_tmo_usec = 0
        isk.opts.so_rcv_tmo_sec = isk.opts.so_rcv_tmo_usec = 0
        entries.append(entry)
    path = folder / "files.img"
    path.write_bytes((0x54564319).to_bytes(4, "little") + (0x56303138).to_bytes(4, "little"))
    images.store(path, entries)


def test_a_skeleton_is_rewritten(tmp_path: Path) -> None:
    _skeleton(
        tmp_path,
        [("10.0.0.1", "10.0.0.2"), ("0.0.0.0", "0.0.0.0"), ("::ffff:10.0.0.2", "fd00::5"), ("::", "::")],
    )
    table = AddressMap({"10.0.0.1": "10.9.0.1", "10.0.0.2": "10.9.0.2", "fd00::5": "fd09::5"})
    assert rewrite(tmp_path, table) == 2
    found = [
        (str(from_words(e.isk.src_addr)), str(from_words(e.isk.dst_addr)))
        for e in images.load(tmp_path / "files.img", "fdinfo", "file_entry")
    ]
    assert found == [
        ("10.9.0.1", "10.9.0.2"),
        ("0.0.0.0", "0.0.0.0"),
        (str(ipaddress.ip_address("::ffff:10.9.0.2")), "fd09::5"),
        ("::", "::"),
    ]
    before = (tmp_path / "files.img").read_bytes()
    assert rewrite(tmp_path, AddressMap({"10.9.0.1": "10.9.0.1"})) == 0
    assert (tmp_path / "files.img").read_bytes() == before


def test_rules_replace_an_earlier_table() -> None:
    leads = {"10.0.0.1": "10.9.0.1", "fd00::1": "fd09::1"}
    lines = rules("cw-snapshot-6a", leads).splitlines()
    assert lines[:2] == ["add table ip cw-snapshot-6a", "delete table ip cw-snapshot-6a"]
    assert "add rule ip cw-snapshot-6a output ip daddr 10.0.0.1 dnat to 10.9.0.1" in lines
    assert "add rule ip6 cw-snapshot-6a output ip6 daddr fd00::1 dnat to fd09::1" in lines
    assert not [line for line in rules("t", {}).splitlines() if "rule" in line]
