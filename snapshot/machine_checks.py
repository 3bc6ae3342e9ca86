"""Whether this machine can take and restore snapshots: findings with evidence and fix.

Checks that pass are findings too, so that a report shows what was looked at.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from cw_snapshot.errors import CwError
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import Criu, find_criu, rpc
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.native import NativePartsMissingError, native_dir
from cw_snapshot.snapshot.pagemap import supported_categories

_TIMEOUT_SECONDS = 30
_TMPFS_LEAST = 256 << 20
_PIDS_LEAST = 4096

CAPABILITIES = {
    "chown": (0, "files of a restored job get the wrong owner"),
    "dac_override": (1, "files of other users can't be opened"),
    "dac_read_search": (2, "files can't be opened by handle"),
    "fowner": (3, "modes of restored files can't be set"),
    "kill": (5, "jobs of other users can't be stopped"),
    "setgid": (6, "jobs of other users can't be restored"),
    "setuid": (7, "jobs of other users can't be restored"),
    "setpcap": (8, "capabilities of a job can't be restored"),
    "net_admin": (12, "TCP connections can't be dumped or restored"),
    "net_raw": (13, "raw sockets can't be restored"),
    "sys_chroot": (18, "a job with another root folder can't be restored"),
    "sys_ptrace": (19, "nothing can be dumped"),
    "sys_admin": (21, "namespaces can't be made; nothing can be started or restored"),
    "sys_resource": (
        24,
        "a job that runs as several users can't be dumped; jobs of one other user are dumped as that user",
    ),
    "mknod": (27, "deleted device nodes can't be restored"),
    "checkpoint_restore": (40, "pids can't be chosen at restore"),
}
"""Number (linux/capability.h) and what its lack costs."""

_ESSENTIAL = {"sys_ptrace", "sys_admin", "net_admin"}


def _ok(code: str, what: str) -> Finding:
    return Finding(code, Severity.OK, what)


def _warn(code: str, what: str, evidence: str = "", fix: str = "") -> Finding:
    return Finding(code, Severity.WARNING, what, evidence, fix)


def _fail(code: str, what: str, evidence: str = "", fix: str = "") -> Finding:
    return Finding(code, Severity.REFUSAL, what, evidence, fix)


def check_root() -> Finding:
    if os.geteuid() == 0:
        return _ok("root", "runs as root")
    return _fail("root", "does not run as root", f"uid {os.geteuid()}", "use sudo")


def check_capabilities() -> Iterable[Finding]:
    effective = int(procfs.status(os.getpid())["CapEff"], 16)
    missing = {name: cost for name, (bit, cost) in CAPABILITIES.items() if not effective >> bit & 1}
    if not missing:
        yield _ok("capabilities", "all capabilities that are used are there")
    for name, cost in missing.items():
        make = _fail if name in _ESSENTIAL else _warn
        fix = f"grant CAP_{name.upper()} (systemd: CapabilityBoundingSet=, containers: capabilities.add)"
        yield make(
            f"cap-{name.replace('_', '-')}",
            f"CAP_{name.upper()} is missing: {cost}",
            "/proc/self/status CapEff",
            fix,
        )


def check_native() -> Finding:
    try:
        return _ok("native", f"native parts in {native_dir()}")
    except NativePartsMissingError as error:
        return _fail("native", error.message, fix=error.fix)


def check_pagemap_scan() -> Finding:
    if supported_categories():
        return _ok("pagemap-scan", "kernel has PAGEMAP_SCAN")
    return _ok("pagemap-scan", "kernel has no PAGEMAP_SCAN (before 6.7): the pagemap file is read instead")


def check_time_namespaces() -> Finding:
    if Path("/proc/self/ns/time").exists():
        return _ok("time-namespaces", "kernel has time namespaces")
    return _warn(
        "time-namespaces",
        "kernel lacks time namespaces: a restored job sees its monotonic clock jump and its timeouts fire",
        f"kernel {platform.release()}",
        "use kernel 5.6 or newer with CONFIG_TIME_NS",
    )


def check_criu() -> Iterable[Finding]:
    try:
        criu = find_criu()
    except CwError as error:
        yield _fail("criu", error.message, "; ".join(error.evidence), error.fix)
        return
    yield _ok("criu", f"criu {criu.version_text} at {criu.binary}")
    works, printed = criu.check()
    if works:
        yield _ok("criu-check", "criu check passes")
    else:
        yield _fail("criu-check", "criu does not work on this kernel", printed, "use a newer criu")
    yield from _criu_features(criu)
    try:
        rpc()
        yield _ok("pycriu", f"pycriu at {criu.pycriu}")
    except Exception as error:  # whatever an import of a foreign package raises
        yield _fail("pycriu", "pycriu can't be imported", f"{criu.pycriu}: {error}", "pip install protobuf")
    if not criu.dumps_guards:
        yield _warn(
            "guard-regions",
            "jobs with guard regions (MADV_GUARD_INSTALL) are refused",
            f"criu {criu.version_text}",
            "use criu 4.2 or newer",
        )


def _criu_features(criu: Criu) -> Iterable[Finding]:
    for feature, meaning in (("clone3_set_tid", "restore can choose pids"), ("timens", "time is restored")):
        done = subprocess.run(
            criu.command("check", "--feature", feature),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            yield _ok(f"criu-{feature.replace('_', '-')}", f"{feature}: {meaning}")
        else:
            evidence = (done.stdout + done.stderr).strip()
            yield _warn(
                f"criu-{feature.replace('_', '-')}", f"criu lacks {feature}", evidence, "use a newer kernel"
            )


def check_nftables() -> Finding:
    nft = shutil.which("nft")
    if nft is None:
        return _warn(
            "nftables",
            "the nft program is missing: jobs with TCP connections can't be restored, and tables left by a "
            "dead criu can't be found and removed",
            fix="apt-get install nftables",
        )
    done = subprocess.run(
        [nft, "list", "tables"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        return _fail(
            "nftables",
            "the kernel's nftables can't be used: TCP connections can't be locked during a dump",
            done.stderr.strip(),
            "load the module nf_tables",
        )
    return _ok("nftables", "nftables works")


def check_programs() -> Iterable[Finding]:
    for name in ("nsenter", "setpriv"):
        if shutil.which(name) is None:
            yield _fail(name, f"the program {name} is missing", fix="apt-get install util-linux")
        else:
            yield _ok(name, f"{name} is there")


def check_forced_writes() -> Finding:
    """Pages are poured through /proc/PID/mem into read-only mappings too; kernels with
    PROC_MEM_NO_FORCE or proc_mem.force_override refuse that (tried on a page of our own)."""
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ)
    fd = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(fd, b"x", address)
    except OSError as error:
        return _fail(
            "forced-writes",
            "the kernel refuses forced writes to /proc/PID/mem: memory can't be restored",
            f"pwrite to a read-only page: {error.strerror}",
            "boot with proc_mem.force_override=ptrace or =always",
        )
    finally:
        os.close(fd)
    return _ok("forced-writes", "read-only memory can be written through /proc/PID/mem")


def check_limits() -> Iterable[Finding]:
    pids = procfs.pid_max()
    if pids < _PIDS_LEAST:
        yield _warn(
            "pid-max", "few pids: a restore may not find free ones", f"kernel.pid_max = {pids}", "raise it"
        )
    else:
        yield _ok("pid-max", f"kernel.pid_max is {pids}")
    overcommit = Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    if overcommit == "2":
        yield _warn(
            "overcommit",
            "strict memory accounting: a shadow counts as a second copy of the job from its first moment",
            "vm.overcommit_memory = 2",
            "set it to 0 or 1, or expect longer pauses",
        )
    else:
        yield _ok("overcommit", f"vm.overcommit_memory is {overcommit}")
    shm = shutil.disk_usage("/dev/shm")
    if shm.free < _TMPFS_LEAST:
        yield _warn(
            "tmpfs",
            "/dev/shm has little room for criu's images",
            f"{shm.free >> 20} MiB free",
            "mount -o remount,size=... /dev/shm",
        )
    else:
        yield _ok("tmpfs", f"/dev/shm has {shm.free >> 20} MiB free")
    available = procfs.meminfo()["MemAvailable"]
    yield _ok("memory", f"{available >> 20} MiB of memory available for shadows and buffers")


def all_checks() -> list[Finding]:
    """Every check of this machine, in reading order."""
    checks: list[Callable[[], Finding | Iterable[Finding]]] = [
        check_root,
        check_capabilities,
        check_native,
        check_criu,
        check_pagemap_scan,
        check_time_namespaces,
        check_nftables,
        check_programs,
        check_forced_writes,
        check_limits,
    ]
    found: list[Finding] = []
    for check in checks:
        result = check()
        found += [result] if isinstance(result, Finding) else list(result)
    return found
