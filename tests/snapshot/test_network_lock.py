"""Which packets are held back while connections are rebuilt."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

import pytest

from cw_snapshot.snapshot import images, network_lock
from cw_snapshot.snapshot.addresses import to_words
from cw_snapshot.snapshot.network_lock import Connection, connections, rules, table_name


def entry(local: str, remote: str, *, state: int = 1, proto: int = 6) -> SimpleNamespace:
    isk = SimpleNamespace(
        proto=proto,
        state=state,
        src_addr=to_words(ip_address(local)),
        src_port=1000,
        dst_addr=to_words(ip_address(remote)) if remote else [],
        dst_port=2000 if remote else 0,
    )
    return SimpleNamespace(isk=isk, HasField=lambda name: name == "isk")


def test_connections_of_a_skeleton(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry("10.0.0.1", "10.0.0.2"),
        entry("::ffff:10.0.0.1", "::ffff:10.0.0.3", state=8),  # the other end has closed
        entry("fd00::1", "fd00::2"),
        entry("0.0.0.0", "", state=10),  # listens
        entry("10.0.0.1", "10.0.0.2", state=7),  # closed
        entry("10.0.0.1", "10.0.0.2", proto=17),
    ]
    monkeypatch.setattr(images, "load", lambda *_: entries)
    found = [(str(c.local), str(c.remote)) for c in connections(Path())]
    assert found == [("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.3"), ("fd00::1", "fd00::2")]


def test_rules() -> None:
    four = Connection(ip_address("10.0.0.1"), 1, ip_address("10.0.0.2"), 2)
    six = Connection(ip_address("fd00::1"), 1, ip_address("fd00::2"), 2)
    text = rules("CRIU-x", [four, four, six])
    assert text.count("10.0.0.1 . 1 . 10.0.0.2 . 2") == 1, "an element is given once"
    assert text.count(" drop\n") == 4, "both ways of both families"
    assert "mark 0xc114 accept" in text
    assert rules("CRIU-x", []) == "add table inet CRIU-x\ndelete table inet CRIU-x\n"


def test_the_name_is_that_of_crius_own_table() -> None:
    assert table_name("0123456789abcdef0123456789") == "CRIU-0123456789abcdef01234"


def test_without_connections_no_program_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load", lambda *_: [])
    monkeypatch.setattr(network_lock, "_apply", pytest.fail)
    network_lock.lock(Path())
    network_lock.unlock(Path())
