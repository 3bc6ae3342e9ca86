"""Connections that a restored job makes later to addresses of its earlier allocation.

MASTER_ADDR in an environment, an address in some variable: they can't be rewritten. A table of nftables
on the job's node sends what goes to an old address to the new one. Established connections go to new
addresses, for their images were rewritten; no new address may be translated, also where it was an old
one of somebody else: conntrack takes up a connection in its middle as a new one.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import nft


class TranslationFailedError(CwError):
    """The table that leads old addresses to the new ones could not be made: {why}

    Fix: nftables with nat is needed (kernel modules nft_nat and nf_conntrack).
    """

    exit_code = ExitCode.ABORTED


def rules(name: str, leads: Mapping[str, str]) -> str:
    """The nft commands that make the table anew; pure. With nothing to translate they delete it."""
    lines = []
    pairs = [(ipaddress.ip_address(old), ipaddress.ip_address(new)) for old, new in leads.items()]
    # The priority of destination nat; nft knows its name in prerouting only (nft(8)).
    for family, version, word in (("ip", 4, "ip"), ("ip6", 6, "ip6")):
        lines += [f"add table {family} {name}", f"delete table {family} {name}"]
        found = {old: new for old, new in pairs if old.version == version}
        if not found:
            continue
        lines.append(f"add table {family} {name}")
        lines.append(
            f"add chain {family} {name} output {{ type nat hook output priority -100 ; policy accept ; }}"
        )
        lines += [
            f"add rule {family} {name} output {word} daddr {old} dnat to {new}"
            for old, new in sorted(found.items(), key=lambda item: int(item[0]))
        ]
    return "\n".join(lines) + "\n"


_PREFIX = "cw-snapshot-"


def table_name(job: str) -> str:
    """Of a job, for all its trees on a node: letters that nft takes, and none that another job has."""
    return _PREFIX + job.encode().hex()


def jobs_with_tables() -> list[str]:
    """The jobs for which our network namespace has a table."""
    done = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
    names = {line.split()[-1] for line in done.stdout.splitlines() if _PREFIX in line}
    found = []
    for name in sorted(names):
        with suppress(ValueError):
            found.append(bytes.fromhex(name.removeprefix(_PREFIX)).decode())
    return found


def install(name: str, leads: Mapping[str, str]) -> None:
    """Make the table in our network namespace; one of an earlier restore is replaced, in one step.

    :raises TranslationFailedError: it was not made; nothing changed.
    """
    try:
        nft.apply(rules(name, leads))
    except nft.NftError as error:
        raise TranslationFailedError(why=error) from error


def remove(name: str) -> None:
    """Delete the table, if there is one."""
    install(name, {})
