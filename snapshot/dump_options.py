"""The options of criu's dump and restore requests, chosen once and explained."""

from __future__ import annotations

from typing import Any

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import rpc
from cw_snapshot.snapshot.native import plugin_dir
from cw_snapshot.snapshot.pagemap import scan_is_switched_off
from cw_snapshot.snapshot.tree import Member

LOG_LEVEL = 2
"""criu's log: 2 has errors and warnings. 4 tells every step, at 3 ms a process in the pause."""

_GHOST_LIMIT = (1 << 32) - 1
"""Bytes of a deleted file that criu carries; the field is 32 bits wide."""


NO_BREAKPOINTS = {"CRIU_FAULT": "130"}
"""Environment that makes criu single out its parasite's last system call by tracing and not by a
hardware breakpoint (criu/include/fault-injection.h, FI_NO_BREAKPOINTS): removing a breakpoint
waits for an RCU grace period of the kernel, 10-20 ms a process inside the pause."""


def dump_environment(*, journal: int, flags: int, hold: int) -> dict[str, str]:
    """The environment of a dumping criu: what its library is told (criu_cow_c/plugin.c).

    :param journal, flags, hold: descriptors.
    """
    told = {
        "CRIU_LIBS_DIR": str(plugin_dir()),
        "CW_COW_JOURNAL": str(journal),
        "CW_COW_VMFLAGS": str(flags),
        "CW_COW_HOLD": str(hold),
    }
    if scan_is_switched_off():
        told["CW_COW_TEST_NO_PAGEMAP_SCAN"] = "1"
    return NO_BREAKPOINTS | told


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
