"""Where the C parts lie."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from cw_snapshot.errors import CwError


class NativePartsMissingError(CwError):
    """The native parts of cw-snapshot are not installed in {folder}.

    Fix: install the package again (`pip install .`); a source folder on PYTHONPATH is not enough.
    """


def native_dir() -> Path:
    """Folder of cw-init, cw-keeper, cw-ranks and criu-plugins/. `CW_SNAPSHOT_NATIVE_DIR`
    names another one (tests with sanitizer builds)."""
    override = os.environ.get("CW_SNAPSHOT_NATIVE_DIR")
    folder = Path(override) if override else Path(sysconfig.get_path("platlib")) / "cw_snapshot" / "native"
    if not (folder / "cw-init").is_file():
        raise NativePartsMissingError(folder=folder)
    return folder


def program(name: str) -> str:
    """Path of one of our programs."""
    return str(native_dir() / name)


def plugin_dir() -> Path:
    """Folder that holds the CRIU plugin and nothing else."""
    return native_dir() / "criu-plugins"


def plugin_path() -> Path:
    """The library that is both preloaded into criu and loaded by it as a plugin: one path, so
    that both are one instance."""
    return plugin_dir() / "cw_cow.so"
