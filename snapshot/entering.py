"""How criu is started so that it can dump a tree: in the tree's namespaces, and as its user where
we lack a capability."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.preflight import has_sys_resource

_AMBIENT = (
    "checkpoint_restore",
    "sys_admin",
    "sys_ptrace",
    "net_admin",
    "net_raw",
    "dac_override",
    "dac_read_search",
    "chown",
    "fowner",
    "setuid",
    "setgid",
    "setpcap",
    "kill",
    "sys_chroot",
)
"""Capabilities with which an unprivileged criu dumps sockets and namespaces too (measured)."""

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Entrance:
    """Which namespaces of a tree differ from ours, and as whom criu must run."""

    target: int
    """Any process of the tree."""
    namespaces: tuple[str, ...]
    """Of `pid`, `mnt`, `net`."""
    uid: int
    gid: int

    @property
    def as_user(self) -> bool:
        """criu reads every task's limits with prlimit(2), which without CAP_SYS_RESOURCE works
        only within one uid: then it runs as the job's user, with ambient capabilities."""
        return self.uid != 0

    def command(self, criu: Criu, preload: Path | None) -> list[str]:
        """The command line of `criu swrk`, still without the descriptor number."""
        command: list[str] = []
        if self.namespaces:
            options = [{"pid": "--pid", "mnt": "--mount", "net": "--net"}[n] for n in self.namespaces]
            command += ["nsenter", f"--target={self.target}", *options, "--"]
        if self.as_user:
            capabilities = ",".join(f"+{c}" for c in _AMBIENT)
            command += ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
            command += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}", "--"]
        return [*command, *criu.command("swrk", preload=preload)]

    def environment(self, runtime_dir: Path) -> dict[str, str]:
        """Only what criu needs: it would read HOME and CRIU_CONFIG_FILE. An unprivileged criu
        keeps its kernel facts in XDG_RUNTIME_DIR."""
        return {"PATH": _PATH, "XDG_RUNTIME_DIR": str(runtime_dir)}


def entrance(root: int) -> Entrance:
    """How to get at the tree of `root`."""
    us = os.getpid()
    differing = tuple(
        n for n in ("pid", "mnt", "net") if procfs.namespace(root, n) != procfs.namespace(us, n)
    )
    status = procfs.status(root)
    uid, gid = int(status["Uid"].split()[0]), int(status["Gid"].split()[0])
    if has_sys_resource():
        uid, gid = 0, 0
    return Entrance(root, differing, uid, gid)
