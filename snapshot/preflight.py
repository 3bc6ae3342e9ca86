"""Reasons why this job can't be snapshotted, found from /proc before anything is stopped.

Sources: research on process shapes with criu 4.1 and 4.2, and the upstream issues named beside
each rule.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import carried_files, procfs, room, surroundings
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.pagemap import Pagemap, scan_finds_guards
from cw_snapshot.snapshot.predict import JobFacts
from cw_snapshot.snapshot.procfs import Descriptor, Mapping, ProcessGoneError
from cw_snapshot.snapshot.socket_peers import (
    SOCK_STREAM,
    tcp_connections,
    tcp_to_outside,
    unix_peers,
    unix_sockets,
)
from cw_snapshot.snapshot.tree import SHADOW_COMM, Member, Tree

_MOST_CONNECTIONS = 640
"""criu holds a descriptor of every connected TCP socket and up to 252 more while it fetches them
(criu/parasite-syscall.c), and libnftables calls select(2), which aborts at descriptor 1024: criu would
die in the middle of the dump, and the job with it. 600 were dumped, with 800 criu died."""
_PLAIN_DEVICES = {"null", "zero", "full", "random", "urandom", "kmsg", "tty", "ptmx"}
"""Character devices of /dev that criu dumps by path."""

_UNSUPPORTED_ANON = {
    "[userfaultfd]": ("userfaultfd", "criu can't dump a userfaultfd"),
    "[perf_event]": ("perf-event", "criu can't dump a perf event; stop the profiler"),
    "[fanotify]": ("fanotify", "criu can't dump this fanotify descriptor"),
}


_MEMORY_PARTS = 4
"""A file that lives in memory may have one part in so many of the available memory: it is copied."""


class PreflightRefusedError(CwError):
    """The job can't be snapshotted as it is; it was not touched.

    Fix: see each finding. `--force` tries anyway, but for what would stop this command or the machine; a
    dump that fails lets the job go on.
    """

    exit_code = ExitCode.REFUSED

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(evidence=[str(f) for f in findings])
        self.findings = list(findings)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What preflight looks at, of one process."""

    member: Member
    comm: str
    status: dict[str, str]
    descriptors: list[Descriptor]
    mappings: list[Mapping]
    own_ipc: bool
    """It lives in another ipc namespace than we do."""


def gather(tree: Tree) -> list[ProcessFacts]:
    """Read the facts of every living process of a tree. One that ends meanwhile is left out."""
    facts = []
    our_ipc = procfs.namespace(os.getpid(), "ipc")
    for member in tree.living:
        try:
            facts.append(
                ProcessFacts(
                    member,
                    procfs.read_stat(member.pid).comm,
                    procfs.status(member.pid),
                    procfs.descriptors(member.pid),
                    procfs.mappings(member.pid),
                    procfs.namespace(member.pid, "ipc") != our_ipc,
                )
            )
        except (ProcessGoneError, PermissionError):
            continue
    return facts


def inspect(
    tree: Tree, facts: Sequence[ProcessFacts], criu: Criu, job: JobFacts, *, goes_on: bool = True
) -> list[Finding]:
    """All findings about a job, the worst first.

    :param job: its size, as a prediction takes it.
    :param goes_on: it is to run while its shadows live (not with `--stop`).
    """
    findings = [*_about_root(tree), *_about_main_threads(tree)]
    if findings:
        return findings  # nothing else can be asked of such a tree
    findings += [finding for one in facts for finding in _about_process(one, criu)]
    findings += surroundings.findings(tree)
    findings += _about_orphans(tree)
    findings += _about_connections(tree, facts)
    findings += _about_users(facts)
    findings += room.findings(tree, job, goes_on=goes_on)
    return sorted(findings, key=lambda f: -f.severity)


def _refuse(code: str, what: str, evidence: str, fix: str) -> Finding:
    return Finding(code, Severity.REFUSAL, what, evidence, fix)


def _about_process(one: ProcessFacts, criu: Criu) -> Iterator[Finding]:
    who = f"pid {one.member.pid} ({one.comm})"
    for descriptor in one.descriptors:
        yield from _about_target(descriptor.target, f"{who} fd {descriptor.fd}")
    for target in sorted(
        {m.name for m in one.mappings if m.name.startswith(("/dev/", "anon_inode:", "/anon_inode"))}
    ):
        yield from _about_target(
            target.removeprefix("/") if "anon_inode" in target else target, f"{who} mapping"
        )
    if not one.own_ipc and (segments := [m.name for m in one.mappings if m.name.startswith("/SYSV")]):
        yield _refuse(
            "sysv-shm",
            "the job uses SysV shared memory of the host's ipc namespace, which criu can't dump",
            f"{who} {segments[0]}",
            "start the job with `cw-snapshot run`, which gives it an ipc namespace of its own",
        )
    yield from surroundings.deleted_links(who, one.member.pid, one.descriptors, one.mappings)
    yield from _about_files_in_memory(one, who)
    yield from _about_state(one, who)
    if not (criu.dumps_guards and scan_finds_guards()):
        yield from _about_guards(one, who, criu)


def _about_files_in_memory(one: ProcessFacts, who: str) -> Iterator[Finding]:
    allowed = procfs.meminfo()["MemAvailable"] // _MEMORY_PARTS
    for file in carried_files.find(one.member.pid, one.descriptors, one.mappings):
        if file.size > allowed:
            yield _refuse(
                "file-in-memory",
                f"a file on a tmpfs is too large ({file.size} bytes; at most {allowed}) to be carried in "
                "the snapshot",
                f"{who} {file.where}",
                "close it before the take, make it smaller, or keep it on a disk",
            )


def _about_target(target: str, evidence: str) -> Iterator[Finding]:
    evidence = f"{evidence} -> {target}"
    if "[io_uring]" in target:
        yield _refuse(
            "io-uring",
            "io_uring can't be dumped (checkpoint-restore/criu#2131)",
            evidence,
            "start the job with `cw-snapshot run`, which makes libraries fall back to epoll; for torch's "
            "TCPStore alone USE_LIBUV=0 is enough",
        )
    elif target.startswith("/dev/infiniband/"):
        yield _refuse(
            "uverbs",
            "RDMA devices can't be dumped",
            evidence,
            "use a TCP transport (NCCL_IB_DISABLE=1, UCX_TLS=tcp,self,sysv)",
        )
    elif target.startswith("/dev/") and _foreign_device(target):
        yield _refuse(
            "device-file",
            "an open device file can't be dumped",
            evidence,
            "close it before the take; GPU devices need the GPU support of a later release",
        )
    elif target.startswith("anon_inode:") and (
        known := _UNSUPPORTED_ANON.get(target.removeprefix("anon_inode:"))
    ):
        yield _refuse(known[0], known[1], evidence, "close it before the take")


def _foreign_device(target: str) -> bool:
    name = target.removeprefix("/dev/").removesuffix(" (deleted)")
    if name in _PLAIN_DEVICES or name.startswith(("shm/", "pts/", "mqueue/", "hugepages")):
        return False
    try:
        return not Path(target).is_file() and not Path(target).is_dir()
    except OSError:
        return True


def _about_state(one: ProcessFacts, who: str) -> Iterator[Finding]:
    if one.status.get("TracerPid", "0") != "0":
        yield _refuse(
            "traced",
            "a debugger or tracer is attached",
            f"{who} traced by pid {one.status['TracerPid']}",
            "detach it before the take",
        )
    terminals = sorted({d.target for d in one.descriptors if d.target.startswith(("/dev/pts/", "/dev/tty"))})
    if terminals:
        yield _refuse(
            "terminal",
            "the job is attached to a terminal, which won't exist at restore",
            f"{who} -> {terminals[0]}",
            "start it with `cw-snapshot run`, or with `setsid` and its output in files",
        )


def _about_guards(one: ProcessFacts, who: str, criu: Criu) -> Iterator[Finding]:
    try:
        with Pagemap(one.member.pid) as pagemap:
            for mapping in one.mappings:
                if (
                    mapping.private
                    and mapping.name != "[vsyscall]"
                    and pagemap.guards(mapping.start, mapping.end)
                ):
                    yield _refuse(
                        "guard-region",
                        f"guard regions (MADV_GUARD_INSTALL) are lost by criu {criu.version_text}",
                        f"{who} mapping {mapping.start:x}-{mapping.end:x}",
                        "install criu >= 4.2",
                    )
                    return
    except ProcessGoneError:
        return


def _about_root(tree: Tree) -> Iterator[Finding]:
    if any(m.pid == os.getpid() for m in tree.members):
        yield _refuse(
            "own-tree",
            "this command is part of the tree: it would stop itself",
            f"pid {os.getpid()} below pid {tree.root.pid}",
            "name the job's root process, or run the command from another session",
        )
    # Kernel threads have no memory; pid 1 holds the machine (or the container) together.
    status = procfs.status(tree.root.pid)
    kernel_s = status.get("Kthread", "0" if "VmSize" in status else "1")  # the field is new in 6.7
    if tree.root.pid <= 2 or kernel_s == "1":
        yield _refuse(
            "not-a-job",
            "this is the init or a thread of the kernel",
            f"pid {tree.root.pid} ({procfs.read_stat(tree.root.pid).comm})",
            "name the job's root process",
        )


def _about_main_threads(tree: Tree) -> Iterator[Finding]:
    """Such a process has no files, memory and namespaces in /proc any more."""
    for member in tree.living:
        with suppress(ProcessGoneError):
            stat = procfs.read_stat(member.pid)
            if stat.state in "ZX" and not procfs.has_ended(member.pid):
                yield _refuse(
                    "main-thread-exited",
                    "the main thread has ended while others run; criu can't dump that",
                    f"pid {member.pid} ({stat.comm})",
                    "end the process, or don't call pthread_exit() from main()",
                )


def _about_orphans(tree: Tree) -> Iterator[Finding]:
    """Processes of the job that its root has lost: criu dumps what hangs below one root."""
    try:
        init = procfs.read_stat(tree.root.pid).ppid
        if (
            procfs.namespace(init, "pid") != procfs.namespace(tree.root.pid, "pid")
            or procfs.ns_pid(init) != 1
            or init == 1
        ):
            return
        children = procfs.children(init)
    except (ProcessGoneError, PermissionError):
        return
    for pid in children:
        try:
            stat = procfs.read_stat(pid)
        except ProcessGoneError:
            continue
        if pid != tree.root.pid and stat.comm != SHADOW_COMM and stat.state not in "ZX":
            yield _refuse(
                "orphan",
                "a process of the job has left its tree and would be lost",
                f"pid {pid} ({stat.comm})",
                "let it end, or start it in the foreground",
            )


def _about_connections(tree: Tree, facts: Sequence[ProcessFacts]) -> Iterator[Finding]:
    """Connections of which the snapshot would hold one end only."""
    holder = {
        int(d.target[8:-1]): f"pid {one.member.pid} ({one.comm}) fd {d.fd}"
        for one in facts
        for d in one.descriptors
        if d.target.startswith("socket:[")
    }
    connected = sum(1 for c in tcp_connections(tree.root.pid) if c.inode in holder)
    if connected > _MOST_CONNECTIONS:
        yield _refuse(
            "too-many-connections",
            f"criu can hold {_MOST_CONNECTIONS} connected TCP sockets, and dies of many more",
            f"{connected} in the tree of pid {tree.root.pid}",
            "close some before the take",
        )
    for connection in tcp_to_outside(tree.root.pid, holder):
        yield Finding(
            "tcp-outside",
            Severity.WARNING,
            "a connection to a process outside the job: after a restore it is reset",
            f"{holder[connection.inode]} {connection}",
        )
    if procfs.namespace(tree.root.pid, "net") != procfs.namespace(os.getpid(), "net"):
        return  # criu refuses by itself what is not seen here
    kinds = unix_sockets(tree.root.pid)
    for inode, peer in unix_peers().items():
        if inode in holder and peer not in holder and kinds.get(inode) == SOCK_STREAM:
            yield _refuse(
                "unix-outside",
                "a unix connection to a process outside the job can't be dumped",
                f"{holder[inode]} -> socket:[{peer}]",
                "close it before the take, or start the other process as part of the job",
            )


def _about_users(facts: Sequence[ProcessFacts]) -> Iterator[Finding]:
    users = sorted({one.status["Uid"].split()[0] for one in facts})
    if len(users) > 1 and not has_sys_resource():
        yield _refuse(
            "several-users",
            "the job runs as several users, and without CAP_SYS_RESOURCE criu can dump only one",
            f"uids {', '.join(users)}",
            "give the agent CAP_SYS_RESOURCE",
        )


CAP_SYS_RESOURCE = 24
"""linux/capability.h."""


def has_sys_resource() -> bool:
    """Whether we may read the limits of other users' processes, as criu must (prlimit(2))."""
    return bool(int(procfs.status(os.getpid())["CapEff"], 16) >> CAP_SYS_RESOURCE & 1)
