"""Network namespaces with names, as `ip netns` keeps them, and what runs in them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from cw_snapshot.errors import CwError

FOLDER = Path("/run/netns")
"""Where `ip netns` binds named namespaces (ip-netns(8))."""


inherited: set[int] = set()
"""Descriptors that every command we run keeps open. A lock in here is held until the last command has
ended, also when we are killed before it."""


class IpFailedError(CwError):
    """`{command}` failed: {why}

    Fix: the lab needs root, iproute2, and a kernel with network namespaces, veth and bridges.
    """


class NamespaceBusyError(CwError):
    """Processes in the namespaces of the lab do not end.

    Fix: they are in uninterruptible sleep; see /proc/PID/stack for what they wait for.
    """


def ip(*words: str) -> str:
    """Run `ip` once; returns its output."""
    return run(["ip", *words])


def batch(commands: Iterable[str], *, namespace: str | None = None) -> None:
    """Run many `ip` commands in one process, in a namespace or where we are.

    :raises IpFailedError: at the first that fails; those before it were done.
    """
    where = ["-n", namespace] if namespace else []
    run(["ip", *where, "-batch", "-"], "\n".join(commands) + "\n")


def run(command: Sequence[str], given: str = "") -> str:
    """Run a command of iproute2; returns its output.

    :raises IpFailedError: with what it said.
    """
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, pass_fds=[*inherited]
        )
    except OSError as error:
        raise IpFailedError(command=command[0], why=error.strerror) from error
    if done.returncode:
        raise IpFailedError(command=" ".join(command), why=done.stderr.strip(), evidence=given.splitlines())
    return done.stdout


def names() -> list[str]:
    """Names of all namespaces, also of half-made ones."""
    return sorted(entry.name for entry in FOLDER.iterdir()) if FOLDER.is_dir() else []


def exists(name: str) -> bool:
    """Whether a namespace of that name stands; one that a killed `ip netns add` left is a plain file."""
    with suppress(OSError):
        return (FOLDER / name).stat().st_dev != FOLDER.stat().st_dev
    return False


def entering(name: str) -> list[str]:
    """The words that run a command in a namespace. Not `ip netns exec`: that makes a mount namespace,
    which a dump then stumbles over."""
    return ["nsenter", f"--net={FOLDER / name}", "--"]


def delete(names: Iterable[str]) -> None:
    """Delete namespaces, also half-made ones; those that are not there are done."""
    for name in names:
        if exists(name):
            ip("netns", "delete", name)
        with suppress(FileNotFoundError):
            (FOLDER / name).unlink()


def processes(names: Iterable[str]) -> dict[int, str]:
    """Pid of every process in these namespaces, with its name."""
    inodes = {(FOLDER / name).stat().st_ino for name in names if exists(name)}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "ns/net").stat().st_ino in inodes:
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


def end_processes(names: Sequence[str], patience: timedelta) -> None:
    """End everything that runs in these namespaces, and wait until it is gone.

    :param patience: how long those that were killed may take.
    :raises NamespaceBusyError: some did not end.
    """
    limit = time.monotonic() + patience.total_seconds()
    while left := processes(names):
        if time.monotonic() > limit:
            raise NamespaceBusyError(evidence=[f"pid {pid} ({comm})" for pid, comm in left.items()])
        for pid in left:
            # Again for those that were born meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
