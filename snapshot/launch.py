"""Starting trees under cw-init: a job, or the restorer that brings a job back."""

from __future__ import annotations

import grp
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.native import program

OFFERED_STDIO = 100
"""Descriptors 100-102 of a restorer are stdin, stdout and stderr for criu's inherit_fd."""


class LaunchFailedError(CwError):
    """{command} could not be started: {why}.

    Fix: check the command, its user and the log folder; pid, mount and ipc namespaces need
    CAP_SYS_ADMIN.
    """

    exit_code = ExitCode.USAGE


class CommandNotExecutedError(CwError):
    """{command} could not be executed: {why}. PATH is {search!r}.

    Fix: give the program's full path, or put its folder on PATH before `run`; a script also
    needs its interpreter and the executable bit, for the user of the job.
    """

    exit_code = ExitCode.USAGE


class UnknownUserError(CwError):
    """There is no user {name!r}.

    Fix: give `--user` a name or a number of /etc/passwd.
    """

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class User:
    """The user a job runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def find_user(name: str) -> User:
    """Look up a user by name or number."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name)
    except (KeyError, ValueError, OverflowError) as error:
        raise UnknownUserError(name=name) from error
    groups = {entry.pw_gid, *(g.gr_gid for g in grp.getgrall() if entry.pw_name in g.gr_mem)}
    return User(
        entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(sorted(groups)), entry.pw_dir, entry.pw_shell
    )


@dataclass(frozen=True, slots=True)
class Launched:
    """A running tree."""

    init: int
    """Pid of its cw-init, as we see it."""
    init_starttime: int
    command: int
    """Pid of the job root (or of criu) inside its pid namespace."""


def _start(mode: str, options: Sequence[str], command: Sequence[str], **popen: object) -> Launched:
    reader, writer = os.pipe()
    pass_fds = [writer, *popen.pop("pass_fds", [])]  # type: ignore[misc]
    line = [program("cw-init"), mode, f"--ready={writer}", *options, "--", *command]
    try:
        outer = subprocess.Popen(
            line,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **popen,  # type: ignore[call-overload]
        )
    except OSError as error:
        os.close(reader)
        raise LaunchFailedError(command=command[0], why=error.strerror) from error
    finally:
        os.close(writer)
    with os.fdopen(reader) as ready:
        words = [text.strip().split(" ", 2) for text in ready]
    complaint = outer.communicate()[1].decode(errors="replace").strip()
    told = {w[0]: w[1:] for w in words if w}
    if "started" not in told or "init" not in told:
        errno, what = told.get("error", ["0", complaint or "cw-init ended"])
        if what == "exec":
            search = (popen.get("env") or os.environ).get("PATH", "")  # type: ignore[attr-defined]
            raise CommandNotExecutedError(command=command[0], why=os.strerror(int(errno)), search=search)
        reason = f"{what}: {os.strerror(int(errno))}" if errno != "0" else what
        raise LaunchFailedError(command=command[0], why=reason)
    init = int(told["init"][0])
    return Launched(init, procfs.read_stat(init).starttime, int(told["started"][0]))


def launch_job(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    status: Path,
    user: User | None = None,
    allow_io_uring: bool = False,
) -> Launched:
    """Start a job's tree.

    :param folder: its working directory.
    :param log: file of its stdout and stderr, opened for appending.
    :param status: file that cw-init writes when the job has ended.
    """
    options = [f"--status={status}", f"--stdout={log}"]
    if user is not None:
        options += [f"--uid={user.uid}", f"--gid={user.gid}", f"--groups={','.join(map(str, user.groups))}"]
    if allow_io_uring:
        options.append("--allow-io-uring")
    return _start("run", options, command, env=dict(environment), cwd=folder)


def launch_restorer(
    criu: Sequence[str],
    *,
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    log: Path,
    status: Path,
    root: int,
    last_pid: int,
) -> Launched:
    """Start a cw-init whose command is criu, which restores a tree as its sibling.

    :param root: pid of the job root in the images.
    :param last_pid: pids up to here are left to the restored tasks.
    """
    options = [f"--status={status}", f"--stdout={log}", f"--root={root}", f"--last-pid={last_pid}"]
    return _start("restore", options, criu, env=dict(environment), cwd="/", pass_fds=list(pass_fds))


def end_tree(launched: Launched) -> None:
    """Kill a tree at once: the end of its cw-init ends all of it."""
    with suppress(ProcessLookupError):
        os.kill(launched.init, signal.SIGKILL)


def host_pid(init: int, ns_pid: int) -> int:
    """The pid that we see for the child of a cw-init which has `ns_pid` inside."""
    for pid in procfs.children(init):
        with suppress(procfs.ProcessGoneError):  # others may end: criu does when it has restored
            if procfs.ns_pid(pid) == ns_pid:
                return pid
    raise procfs.ProcessGoneError(pid=ns_pid)
