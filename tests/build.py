"""Compiling the C programs that tests use as jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def compile_c(sources: list[Path], target: Path, *options: str) -> Path:
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", *WARNINGS, "-o", str(target), *map(str, sources), *options],
        check=True,
    )
    return target


def build_jobs(folder: Path) -> dict[str, Path]:
    """Every tests/jobs/*.c as a program."""
    return {
        source.stem: compile_c([source], folder / source.stem, "-lpthread", "-lrt")
        for source in sorted(JOBS.glob("*.c"))
    }
