"""What a snapshot assumes of the machine: kernel, processor, criu."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.findings import Finding, Severity

_INSTRUCTION_PREFIXES = (
    "3dnow",
    "abm",
    "adx",
    "aes",
    "amx",
    "apx",
    "avx",
    "bmi",
    "cldemote",
    "clflush",
    "clwb",
    "clzero",
    "cx16",
    "enqcmd",
    "erms",
    "f16c",
    "fma",
    "fsgsbase",
    "fsrm",
    "gfni",
    "movbe",
    "movdir",
    "ospke",
    "pclmulqdq",
    "pku",
    "pni",
    "popcnt",
    "rdpid",
    "rdrand",
    "rdseed",
    "rtm",
    "serialize",
    "sha",
    "sse",
    "ssse",
    "tbm",
    "vaes",
    "vpclmulqdq",
    "waitpkg",
    "xop",
    "xsave",
)
"""Flags of /proc/cpuinfo that a program may have chosen its code by (arch/x86 cpufeatures.h); the
others describe the kernel, bugs and virtualisation."""


@cache
def cpu_instructions() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = line.partition(":")[2].split()
            return frozenset(f for f in flags if f.startswith(_INSTRUCTION_PREFIXES))
    return frozenset()


def facts(criu: Criu) -> dict[str, Any]:
    """What goes into a snapshot about the machine it was made on."""
    return {
        "node": platform.node(),
        "kernel": os.uname().release,
        "machine": platform.machine(),
        "instructions": sorted(cpu_instructions()),
        "criu": criu.version_text,
    }


def differences(then: Mapping[str, Any], criu: Criu) -> list[Finding]:
    """Why a snapshot made on another machine can't, or may not, run here."""
    found = []
    if then["machine"] != platform.machine():
        what = f"the snapshot is of a {then['machine']} machine, this is {platform.machine()}"
        found.append(Finding("machine", Severity.REFUSAL, what))
    missing = sorted(set(then["instructions"]) - cpu_instructions())
    if missing:
        found.append(
            Finding(
                "cpu-features",
                Severity.REFUSAL,
                "this processor lacks instructions that the job may use; it would die of SIGILL",
                " ".join(missing),
                "restore on a node of the same kind",
            )
        )
    made_by = tuple(int(part) for part in then["criu"].split("."))
    # criu reads the images of older releases, and not those of newer ones, of which it does not say
    # so: 4.1 finds no page in the pagemaps of 4.2 (images/pagemap.proto, nr_pages) and forgets guards.
    if made_by[:2] > criu.version[:2]:
        found.append(
            Finding(
                "criu-older",
                Severity.REFUSAL,
                "the snapshot was made by a newer criu, whose images this one can't read",
                f"made by criu {then['criu']}, this is {criu.version_text}",
                f"install criu {'.'.join(map(str, made_by[:2]))} or newer",
            )
        )
    return found
