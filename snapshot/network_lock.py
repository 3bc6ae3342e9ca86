"""Keeping restored connections silent until their other ends exist.

What a job had written and its kernel not yet sent criu gives to the new socket outside of repair mode
(soccr/soccr.c, libsoccr_restore_queue): it is sent at once. Where the other end is not there yet its kernel
answers with a reset, and the restore fails or the connection is lost. criu locks connections when it
dumps, not when it restores. So the same lock is made before criu rebuilds a socket, and opened when all
ends exist; what was dropped meanwhile TCP sends again.

The table has the name that criu's own would have: guards and `doctor` know it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import conntrack, images, nft
from cw_snapshot.snapshot.addresses import Address, from_words

_TCP = 6
_CLOSE, _LISTEN = 7, 10
"""include/net/tcp_states.h."""
_CRIU_MARK = "0xc114"
"""Packets that criu makes itself, when it rebuilds a connection that was half closed (soccr/soccr.h)."""
_NAME_LENGTH = 21
"""criu cuts the table's name off at 31 characters, "inet CRIU-" among them (criu/netfilter.c)."""


class NetworkLockFailedError(CwError):
    """The connections of the job could not be locked until they are all there: {why}

    Fix: the nft program and the kernel module nf_tables are needed; `cw-snapshot doctor` checks both.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection as one end sees it."""

    local: Address
    local_port: int
    remote: Address
    remote_port: int


def connections(folder: Path) -> Iterator[Connection]:
    """Those of a skeleton."""
    for entry in images.load(folder / "files.img", "fdinfo", "file_entry"):
        if not entry.HasField("isk") or entry.isk.proto != _TCP or entry.isk.state in (_CLOSE, _LISTEN):
            continue
        isk = entry.isk
        local, remote = from_words(isk.src_addr), from_words(isk.dst_addr)
        if local is not None and remote is not None:
            yield Connection(_plain(local), isk.src_port, _plain(remote), isk.dst_port)


def _plain(address: Address) -> Address:
    """What is on the wire: a dual-stack socket may hold an IPv4 address inside an IPv6 one."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if isinstance(mapped, ipaddress.IPv4Address) else address


def table_name(run_id: str) -> str:
    """As criu names it after the run that made the dump."""
    return f"CRIU-{run_id[:_NAME_LENGTH]}"


def rules(name: str, locked: Iterable[Connection]) -> str:
    """The nft commands that make the table anew; pure. With nothing to lock they delete it."""
    lines = [f"add table inet {name}", f"delete table inet {name}"]
    found = sorted(set(locked), key=str)
    if not found:
        return "\n".join(lines) + "\n"
    lines.append(f"add table inet {name}")
    for hook in ("input", "output"):
        lines += [
            f"add chain inet {name} {hook} {{ type filter hook {hook} priority 0 ; policy accept ; }}",
            f"add rule inet {name} {hook} meta mark {_CRIU_MARK} accept",
        ]
    for version, word in ((4, "ip"), (6, "ip6")):
        ends = [
            f"{c.local} . {c.local_port} . {c.remote} . {c.remote_port}"
            for c in found
            if c.local.version == version
        ]
        if not ends:
            continue
        kind = f"ipv{version}_addr . inet_service"
        lines += [
            f"add set inet {name} conns{version} {{ type {kind} . {kind} ; }}",
            f"add element inet {name} conns{version} {{ {', '.join(ends)} }}",
            f"add rule inet {name} output {word} saddr . tcp sport . {word} daddr . tcp dport "
            f"@conns{version} drop",
            f"add rule inet {name} input {word} daddr . tcp dport . {word} saddr . tcp sport "
            f"@conns{version} drop",
        ]
    return "\n".join(lines) + "\n"


def lock(folder: Path) -> None:
    """Lock the connections of a skeleton, in our network namespace, and have it forget whatever was led
    elsewhere between the same ends.

    :raises NetworkLockFailedError: they are not locked.
    """
    locked = list(connections(folder))
    if not locked:
        return
    _apply(rules(table_name(images.run_id(folder)), locked))
    # After that: no packet makes them tracked again.
    try:
        conntrack.forget((c.local, c.local_port, c.remote, c.remote_port) for c in locked)
    except conntrack.ConntrackError as error:
        raise NetworkLockFailedError(why=error) from error


def unlock(folder: Path) -> None:
    """Open what :func:`lock` has locked.

    :raises NetworkLockFailedError: it is still locked.
    """
    if any(True for _ in connections(folder)):
        _apply(rules(table_name(images.run_id(folder)), []))


def _apply(commands: str) -> None:
    try:
        nft.apply(commands)
    except nft.NftError as error:
        raise NetworkLockFailedError(why=error) from error
