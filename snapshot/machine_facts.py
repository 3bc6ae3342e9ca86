"""What a bug report tells of the machine. Facts that are not there are None."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.platform_facts import cpu_instructions

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def cgroup_kind(mounts: str) -> str:
    """Which cgroups there are, from the text of /proc/self/mounts."""
    kinds = {fields[2] for line in mounts.splitlines() if len(fields := line.split()) > 2}
    found = [name for kind, name in (("cgroup", "v1"), ("cgroup2", "v2")) if kind in kinds]
    return " and ".join(found) or "none"


def machine() -> dict[str, Any]:
    """Processor, memory, cgroups and the settings of the kernel that matter here."""
    cpuinfo = _text("/proc/cpuinfo") or ""
    memory = procfs.meminfo()
    return {
        "cpu": next(
            (x.partition(":")[2].strip() for x in cpuinfo.splitlines() if x[:10] == "model name"), None
        ),
        "cpu_instructions": sorted(cpu_instructions()),
        "hypervisor": " hypervisor" in cpuinfo,
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "memory_bytes": {k: memory.get(k) for k in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")},
        "cgroup": cgroup_kind(_text("/proc/self/mounts") or ""),
        "cgroup_of_this_command": (_text("/proc/self/cgroup") or "").splitlines(),
        "transparent_huge_pages": _text(_HUGE_PAGES / "enabled"),
        "overcommit_memory": _text("/proc/sys/vm/overcommit_memory"),
        "pid_max": _text("/proc/sys/kernel/pid_max"),
        "lsm": _text("/sys/kernel/security/lsm"),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
    }


def versions() -> dict[str, str | None]:
    """Of everything that a take and a restore are made of, but for cw-snapshot itself."""
    release = (_text("/etc/os-release") or "").splitlines()
    pretty = next((x.partition("=")[2].strip('"') for x in release if x.startswith("PRETTY_NAME=")), None)
    criu = find_criu()
    return {
        "criu": criu.version_text,
        "criu_binary": str(criu.binary),
        "kernel": os.uname().release,
        "kernel_build": os.uname().version,
        "distribution": pretty,
        "debian": _text("/etc/debian_version"),
        "python": platform.python_version(),
        "glibc": platform.libc_ver()[1] or None,
    }
