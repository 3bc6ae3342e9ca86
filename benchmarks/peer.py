"""Plain criu, as an engineer would use it: the peer of the benchmarks.

It dumps and restores the same jobs, with images on a tmpfs, without our page mask and plugin. The
preloaded library is passive without a journal; it only lets criu 4.1 read sockets on kernels that
it does not know (criu_cow_c/criu_compat.c).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.images import tasks
from cw_snapshot.snapshot.native import plugin_path, program
from cw_snapshot.snapshot.skeleton import pid_floor

_OPTIONS = (
    "--tcp-established",
    "--network-lock=nftables",
    "--file-locks",
    "--link-remap",
    "--ext-unix-sk",
    "--ghost-limit=4G",
)
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def fresh_folder(name: str) -> Path:
    folder = Path("/dev/shm") / f"cw-bench-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def dump(root: int, folder: Path) -> None:
    """`criu dump --leave-running` of the tree below `root` into `folder`."""
    criu = find_criu().command("dump", preload=plugin_path())
    words = [
        "-t",
        str(procfs.ns_pid(root)),
        "-D",
        str(folder),
        "-o",
        "dump.log",
        "--leave-running",
        *_OPTIONS,
    ]
    enter = ["nsenter", f"--target={root}", "--pid", "--mount", "--"]
    subprocess.run([*enter, *criu, *words, *_OPTIONS], env=_ENVIRONMENT, check=True, capture_output=True)


def restore(folder: Path, status: Path) -> int:
    """`criu restore` of the images in `folder` in fresh namespaces; returns the pid of their init."""
    used = {pid for t in tasks(folder) for pid in (t.ns_pid, t.pgid, t.sid, *t.threads)}
    criu = find_criu().command("restore")
    words = [
        "-d",
        "-D",
        str(folder),
        "-o",
        "restore.log",
        "--restore-sibling",
        "--manage-cgroups=ignore",
        *_OPTIONS,
    ]
    root = tasks(folder)[0].ns_pid
    command = [program("cw-init"), "restore", f"--status={status}", "--ready=1", f"--root={root}"]
    command += [f"--last-pid={pid_floor(used, procfs.pid_max())}", "--", *criu, *words, *_OPTIONS]
    done = subprocess.run(command, env=_ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return int(dict(line.split(" ", 1) for line in done.stdout.splitlines())["init"])
