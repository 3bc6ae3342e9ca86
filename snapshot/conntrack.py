"""Making the kernel's connection tracking forget connections, in our network namespace.

A connection that was led elsewhere (:mod:`old_addresses`) stays tracked for days after its end
(nf_conntrack_tcp_timeout_established). A restored one with the same ends, which needs no leading any more,
would be a second user of the tracked reply: the kernel then gives it another port
(net/netfilter/nf_nat_core.c, get_unique_tuple), and the other end does not know it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

Ends = tuple[IPv4Address | IPv6Address, int, IPv4Address | IPv6Address, int]
"""Address and port of the one and of the other."""

_NOT_TRACKED = (errno.ENOENT, errno.EINVAL)
"""No such connection; no nf_conntrack_netlink in this kernel, where nothing was led elsewhere either."""


class ConntrackError(Exception):
    """What the kernel says."""


def forget(connections: Iterable[Ends]) -> None:
    """Forget TCP connections, whichever end began them; those that are not tracked too. 0.7 ms each.

    :raises ConntrackError: one is still tracked.
    """
    # Slow to import, and needed in a restore only.
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

    ends = list(connections)
    for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
        wanted = [each for each in ends if each[0].version == version]
        if not wanted:
            continue
        with NFCTSocket(nfgen_family=family) as tracked:
            for source, sport, target, dport in wanted:
                tuple_ = NFCTAttrTuple(
                    family=family,
                    saddr=str(source),
                    daddr=str(target),
                    proto=socket.IPPROTO_TCP,
                    sport=sport,
                    dport=dport,
                )
                # The kernel looks among the tuples of both directions, whichever attribute it comes in.
                for each in (tuple_, tuple_.reverse()):
                    try:
                        tracked.entry("del", tuple_orig=each)
                    except NetlinkError as error:
                        if error.code not in _NOT_TRACKED:
                            raise ConntrackError(str(error)) from error
