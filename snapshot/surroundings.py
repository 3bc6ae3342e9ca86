"""What around a job's processes criu can't take along: namespaces, root folders, names of files that
are gone, and parents that watch."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.procfs import PROC, Descriptor, Mapping, ProcessGoneError
from cw_snapshot.snapshot.tree import Member, Tree

_NAMESPACES = {
    "mnt": "mount",
    "net": "network",
    "pid": "pid",
    "user": "user",
    "uts": "uts",
    "ipc": "ipc",
}
_DELETED = " (deleted)"

# x86_64 numbers (asm/unistd_64.h) and flags (linux/wait.h).
_WAIT4, _WAITID = 61, 247
_WUNTRACED = 2
"""WSTOPPED has the same value."""
_P_PID = 1


def _refuse(code: str, what: str, evidence: str, fix: str) -> Finding:
    return Finding(code, Severity.REFUSAL, what, evidence, fix)


def findings(tree: Tree) -> Iterator[Finding]:
    """Refusals about the places of a tree's processes. Those that end meanwhile are left out."""
    gone = (ProcessGoneError, PermissionError, FileNotFoundError, ProcessLookupError)
    with suppress(*gone):
        yield from _about_mounts(tree.root)
    with suppress(*gone):
        yield from _about_parent(tree.root)
    with suppress(*gone):
        root = {kind: procfs.namespace(tree.root.pid, kind) for kind in _NAMESPACES}
        for member in tree.living:
            with suppress(*gone):
                yield from _about_namespaces(member, root)


def _who(pid: int) -> str:
    return f"pid {pid} ({procfs.read_stat(pid).comm})"


def _about_namespaces(member: Member, root: dict[str, int]) -> Iterator[Finding]:
    differing = [
        name for kind, name in _NAMESPACES.items() if procfs.namespace(member.pid, kind) != root[kind]
    ]
    if differing:
        yield _refuse(
            "other-namespace",
            f"a process of the job lives in another {' and '.join(differing)} namespace than its root, "
            "which would be lost",
            _who(member.pid),
            "let it end, or start it without unshare, containers and sandboxes",
        )
    folder = os.readlink(PROC / str(member.pid) / "root")
    if folder != "/":
        yield _refuse(
            "chroot",
            "a process of the job has a root folder of its own",
            f"{_who(member.pid)} root -> {folder}",
            "start the job without chroot",
        )


def _about_mounts(root: Member) -> Iterator[Finding]:
    parent = procfs.read_stat(root.pid).ppid
    others = {procfs.namespace(os.getpid(), "mnt")}
    with suppress(ProcessGoneError):
        others.add(procfs.namespace(parent, "mnt"))
    if procfs.namespace(root.pid, "mnt") not in others:
        yield _refuse(
            "own-mounts",
            "the job's root has a mount namespace of its own, whose mounts would be lost",
            _who(root.pid),
            "start it with `cw-snapshot run`, without `unshare --mount` or a container around it, or run "
            "cw-snapshot inside of the container",
        )


def deleted_links(
    who: str, pid: int, descriptors: Sequence[Descriptor], mappings: Sequence[Mapping]
) -> Iterator[Finding]:
    """Open or mapped files whose name is gone while they have another one. criu makes a link for them,
    which does not outlive a dump that lets the job go on (criu/files-reg.c, delete_link_remaps)."""
    places = [(f"fd {d.fd} -> {d.target}", d.target, f"fd/{d.fd}") for d in descriptors]
    places += [(f"mapping {m.name}", m.name, f"map_files/{m.start:x}-{m.end:x}") for m in mappings if m.inode]
    told = set()
    for where, target, link in places:
        if target.startswith("/") and target.endswith(_DELETED) and target not in told:
            with suppress(OSError):
                seen = (PROC / str(pid) / link).stat()
                if stat.S_ISREG(seen.st_mode) and seen.st_nlink and not _is_called(pid, target, seen):
                    told.add(target)
                    yield _refuse(
                        "deleted-link",
                        "a file's name is deleted while the file has another one, by which criu can't "
                        "find it again",
                        f"{who} {where}",
                        "open it by the name that it has, or delete that one as well",
                    )


def _is_called(pid: int, name: str, seen: os.stat_result) -> bool:
    """Whether a file's name really ends so."""
    try:
        now = (PROC / str(pid) / "root" / name.lstrip("/")).stat()
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (seen.st_dev, seen.st_ino)


def _about_parent(root: Member) -> Iterator[Finding]:
    """A shell with job control in the foreground of which the job runs sees it stop, and goes on
    without it."""
    parent = procfs.read_stat(root.pid).ppid
    # When it waits for this very command, the job is not in its foreground.
    if not parent or parent in _ancestors(os.getpid()):
        return
    numbers = {int(n) for n in procfs.status(root.pid)["NSpid"].split()}
    for tid in procfs.thread_ids(parent):
        with suppress(OSError):
            call = (PROC / str(parent) / "task" / str(tid) / "syscall").read_text()
            if waits_for_stops(call, numbers):
                yield _refuse(
                    "watching-parent",
                    "the job's parent waits for it to stop (a shell with job control, for one), and would "
                    "go on without it",
                    f"{_who(parent)} thread {tid}, parent of {_who(root.pid)}",
                    "start the job with `cw-snapshot run`, or with `setsid` and `&`",
                )
                return


def waits_for_stops(call: str, pids: set[int]) -> bool:
    """Whether a blocked system call, as /proc/PID/syscall shows it, is one that returns when a child
    with one of `pids` stops."""
    words = call.split()
    if len(words) < 7 or not words[0].isdigit():
        return False  # it runs
    number, args = int(words[0]), [int(word, 16) for word in words[1:7]]
    if number == _WAIT4:
        chosen, one, options = args[0] & 0xFFFFFFFF, args[0] >> 31 & 1 == 0 and args[0] != 0, args[2]
    elif number == _WAITID:
        chosen, one, options = args[1] & 0xFFFFFFFF, args[0] & 0xFFFFFFFF == _P_PID, args[3]
    else:
        return False
    return bool(options & _WUNTRACED) and (not one or chosen in pids)


def _ancestors(pid: int) -> set[int]:
    found = set()
    with suppress(ProcessGoneError):
        while (pid := procfs.read_stat(pid).ppid) and pid not in found:
            found.add(pid)
    return found
