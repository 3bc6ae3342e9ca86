"""Builds of the C parts: as installed, and with sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.snapshot.native import native_dir
from tests.build import WARNINGS, compile_c

SOURCES = Path(__file__).parents[2] / "criu_cow_c"
HERE = Path(__file__).parent
MASK = ("mask_scan.c", "mask_read.c", "mask_ranges.c", "old_kernel.c", "env.c")
LARGE_FILES = ("-D_FILE_OFFSET_BITS=64",)
"""The names by which criu calls libc: pread64, open64."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def build(name: str, folder: Path, *sources: str, options: tuple[str, ...] = SANITIZERS) -> Path:
    local = [HERE / f"{name}.c"] if (HERE / f"{name}.c").exists() else []
    files = local + [SOURCES / source for source in sources]
    return compile_c(files, folder / name, *WARNINGS, f"-I{SOURCES}", *options)


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Programs that call single C parts, with sanitizers; and a target for them, without."""
    folder = tmp_path_factory.mktemp("drivers")
    return {
        "shadow": build("shadow_driver", folder, "shadow.c", "inject.c", "journal.c"),
        "mask": build("mask_driver", folder, *MASK, options=(*SANITIZERS, *LARGE_FILES)),
        "rewind": build("rewind_driver", folder, "rewind.c", "journal.c"),
        "vmflags": build("vmflags_driver", folder, "vmflags.c", "env.c"),
        "target": build("target", folder, options=("-lpthread",)),
    }


@pytest.fixture(autouse=True)
def no_leak_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak checker starts a process at exit; behind unshare(CLONE_NEWPID) that one is in
    another pid namespace and both wait for ever."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")


@pytest.fixture(scope="session", params=["installed", "sanitized"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cw-init, cw-keeper and cw-ranks."""
    if request.param == "installed":
        return native_dir()
    folder = tmp_path_factory.mktemp("sanitized")
    build("cw-init", folder, "init.c", "io_uring_filter.c", "others.c")
    build("cw-keeper", folder, "keeper.c")
    build("cw-ranks", folder, "ranks.c")
    return folder
