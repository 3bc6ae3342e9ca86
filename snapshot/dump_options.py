"""The options of criu's dump and restore requests, chosen once and explained."""

from __future__ import annotations

from typing import Any

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import rpc
from cw_snapshot.snapshot.tree import Member

LOG_LEVEL = 2
"""criu's log: 2 has errors and warnings. 4 tells every step, at 3 ms a process in the pause."""

_GHOST_LIMIT = (1 << 32) - 1
"""Bytes of a deleted file that criu carries; the field is 32 bits wide."""


def _common(images_fd: int, log: str, log_level: int) -> Any:
    return rpc().criu_opts(
        images_dir_fd=-1,
        # The folder is inherited: a path would have to exist in the job's mount namespace too.
        images_dir=f"/proc/self/fd/{images_fd}",
        log_level=log_level,
        log_file=log,
        notify_scripts=True,
        tcp_established=True,
        network_lock=rpc().NFTABLES,
        ext_unix_sk=True,
        file_locks=True,
        link_remap=True,
    )


def dump_options(root: Member, images_fd: int, *, unprivileged: bool, log_level: int) -> Any:
    """Options to dump the tree of `root`; it goes on afterwards."""
    options = _common(images_fd, "dump.log", log_level)
    options.pid = root.ns_pid
    options.leave_running = True
    options.ghost_limit = _GHOST_LIMIT
    stat = procfs.read_stat(root.pid)
    # A root that leads no session (a plain `python train.py &`) is dumped as part of a shell's job.
    options.shell_job = stat.session != root.pid
    if unprivileged:
        options.unprivileged = True
    return options


def restore_options(images_fd: int, *, shell_job: bool, log_level: int) -> Any:
    """Options to restore a tree as the child of criu's parent (cw-init)."""
    options = _common(images_fd, "restore.log", log_level)
    # A sibling of criu survives criu's end even where it asked to die with its parent.
    options.rst_sibling = True
    options.shell_job = shell_job
    # The tasks stay in the cgroup of cw-init: the one of the new allocation.
    options.manage_cgroups = True
    options.manage_cgroups_mode = rpc().IGNORE
    return options
