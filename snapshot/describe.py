"""What a snapshot says about its tree: the metadata in the manifest, for `show` and for restore."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cw_snapshot.snapshot import images, platform_facts, procfs
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.families import Family
from cw_snapshot.snapshot.file_evidence import FileRecord, directories
from cw_snapshot.snapshot.tree import Member, Tree

SCHEMA = "cw-snapshot/tree/1"

_TCP_STATES = {1: "established", 7: "closed", 10: "listening"}
"""include/net/tcp_states.h."""


def process(member: Member) -> dict[str, Any]:
    """Facts about a living process that are not in criu's images. Slow to read; before the stop."""
    base = Path(f"/proc/{member.pid}")
    status = procfs.status(member.pid)
    return {
        "pid": member.ns_pid,
        "comm": procfs.read_stat(member.pid).comm,
        "cmdline": _words(base / "cmdline"),
        "environment": _words(base / "environ"),
        "uid": int(status["Uid"].split()[0]),
        "threads": int(status["Threads"]),
        "rss_bytes": int(status.get("VmRSS", "0 kB").split()[0]) * 1024,
    }


def _words(path: Path) -> list[str]:
    try:
        return [w.decode(errors="replace") for w in path.read_bytes().split(b"\0") if w]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class RootFacts:
    """Facts about the root of a tree."""

    shell_job: bool
    """It leads no session: a plain `python train.py &`."""
    stdio: dict[str, str]
    """Link texts of its descriptors 0, 1 and 2."""


def root_facts(root: Member) -> RootFacts:
    stdio = {str(d.fd): d.target for d in procfs.descriptors(root.pid) if d.fd <= 2}
    return RootFacts(procfs.read_stat(root.pid).session != root.pid, stdio)


def metadata(
    folder: Path,
    tree: Tree,
    criu: Criu,
    processes: Sequence[Mapping[str, Any]],
    files: Iterable[FileRecord],
    root: RootFacts,
    families: Sequence[Family],
) -> dict[str, Any]:
    """The metadata of a tree's manifest.

    :param folder: criu's images.
    :param processes: what :func:`process` found, for members that are still in the tree.
    :param families: members' pages that are stored with their family.
    """
    tasks = {t.ns_pid: t for t in images.tasks(folder)}
    known = {p["pid"]: p for p in processes}
    shared = {
        member: len(addresses) * procfs.PAGE_SIZE
        for family in families
        for member, addresses in family.members.items()
    }
    return {
        "schema": SCHEMA,
        "platform": platform_facts.facts(criu),
        "root": tree.root.ns_pid,
        "shell_job": root.shell_job,
        "stopped_before": [m.ns_pid for m in tree.members if m.pid in tree.stopped_before],
        "processes": [
            {
                **known.get(m.ns_pid, {"pid": m.ns_pid}),
                "parent": tasks[m.ns_pid].parent,
                "zombie": m.zombie,
                "family_bytes": shared.get(m.ns_pid, 0),
            }
            for m in tree.members
        ],
        "files": [f.to_json() for f in files],
        "directories": directories(folder),
        "sockets": sockets(folder),
        "stdio": dict(root.stdio),
    }


def sockets(folder: Path) -> list[dict[str, Any]]:
    """The tree's sockets as text."""
    found: list[dict[str, Any]] = []
    for entry in images.load(folder / "files.img", "fdinfo", "file_entry"):
        if entry.HasField("isk"):
            isk = entry.isk
            found.append(
                {
                    "kind": {6: "tcp", 17: "udp"}.get(isk.proto, f"ip proto {isk.proto}"),
                    "state": _TCP_STATES.get(isk.state, str(isk.state)) if isk.proto == 6 else "",
                    "local": f"{_address(isk.src_addr)}:{isk.src_port}",
                    "remote": f"{_address(isk.dst_addr)}:{isk.dst_port}" if isk.dst_port else "",
                }
            )
        elif entry.HasField("usk"):
            name = bytes(entry.usk.name).rstrip(b"\0").replace(b"\0", b"@").decode(errors="replace")
            found.append({"kind": "unix", "state": "", "local": name, "remote": ""})
    return found


def _address(words: Sequence[int]) -> str:
    """CRIU stores an address as 32-bit words whose bytes are in network order."""
    raw = struct.pack(f"={len(words)}I", *words)
    try:
        address = ipaddress.ip_address(raw)
    except ValueError:
        return "?"
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
