"""Finding a criu that works: the system's when it is new enough, else the private bundle.

The bundle is Debian's criu package with the libraries it needs, unpacked into one folder and
started through that folder's own dynamic loader; see `scripts/criu-bundle`.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from cw_snapshot.errors import CwError, ExitCode

MINIMUM = (4, 1)
"""Oldest criu whose callbacks, nftables lock and PAGEMAP_SCAN use we know to work."""

GUARDS_SINCE = (4, 2)
"""First criu that dumps MADV_GUARD_INSTALL regions."""

_MULTIARCH = "x86_64-linux-gnu"
_CHECK_SECONDS = 30


class CriuMissingError(CwError):
    """No criu >= 4.1 with its Python package was found.

    Fix: run `scripts/setup`, or install criu and python3-pycriu >= 4.1.
    """

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Criu:
    """One installation of criu."""

    binary: Path
    version: tuple[int, ...]
    pycriu: Path
    """Folder of the Python package `pycriu` of the same release."""
    loader: Path | None = None
    """The bundle's own ld.so, or None for a system criu."""

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def dumps_guards(self) -> bool:
        return self.version >= GUARDS_SINCE

    def command(self, *args: str, preload: Path | None = None) -> list[str]:
        """Command line that starts this criu with `args`, and with a library preloaded."""
        if self.loader is None:
            prefix = ["env", f"LD_PRELOAD={preload}"] if preload else []
            return [*prefix, str(self.binary), *args]
        preloading = ["--preload", str(preload)] if preload else []
        return [
            str(self.loader),
            *preloading,
            "--library-path",
            str(self.loader.parent),
            str(self.binary),
            *args,
        ]

    def check(self) -> tuple[bool, str]:
        """`criu check`: whether the kernel has what this criu needs, and what it printed."""
        done = subprocess.run(
            self.command("check"), capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
        return done.returncode == 0, (done.stdout + done.stderr).strip()


def bundle_dir() -> Path:
    """The private bundle. `CW_SNAPSHOT_CRIU_BUNDLE` names another one."""
    override = os.environ.get("CW_SNAPSHOT_CRIU_BUNDLE")
    return Path(override) if override else Path(sys.prefix) / "lib" / "cw-snapshot" / "criu"


def _version(command: list[str]) -> tuple[int, ...] | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Version: (\d+(?:\.\d+)*)", done.stdout, re.MULTILINE)
    return tuple(map(int, match.group(1).split("."))) if match else None


def system_criu() -> Criu | None:
    """The criu on PATH when it is new enough and pycriu stands in Debian's place."""
    binary = shutil.which("criu")
    pycriu = Path("/usr/lib/python3/dist-packages/pycriu")
    if not binary or not (pycriu / "__init__.py").is_file():
        return None
    version = _version([binary, "--version"])
    return Criu(Path(binary), version, pycriu) if version and version >= MINIMUM else None


def bundled_criu(folder: Path) -> Criu | None:
    """The criu unpacked in `folder`, when it starts and is new enough."""
    loader = folder / "usr/lib" / _MULTIARCH / "ld-linux-x86-64.so.2"
    candidate = Criu(
        binary=folder / "usr/sbin/criu",
        version=(0,),
        pycriu=folder / "usr/lib/python3/dist-packages/pycriu",
        loader=loader,
    )
    if not candidate.binary.is_file() or not (candidate.pycriu / "__init__.py").is_file():
        return None
    version = _version(candidate.command("--version"))
    if not version or version < MINIMUM:
        return None
    return Criu(candidate.binary, version, candidate.pycriu, loader)


@cache
def find_criu() -> Criu:
    """The criu to use: a bundle that was named or installed wins over the system's."""
    found = bundled_criu(bundle_dir()) or system_criu()
    if found is None:
        raise CriuMissingError(evidence=[f"no usable bundle in {bundle_dir()}", "no usable criu on PATH"])
    return found


@cache
def load_pycriu() -> None:
    """Make `pycriu.rpc_pb2` and `pycriu.images.*_pb2` of the criu in use importable.

    Only its generated messages are used. The packages themselves are not run: they import what
    does not work with every protobuf, and take 0.1 s for it.
    """
    folder = find_criu().pycriu
    for name, path in (("pycriu", folder), ("pycriu.images", folder / "images")):
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    # The messages of images import one another by bare names, as pycriu itself arranges.
    if str(folder / "images") not in sys.path:
        sys.path.append(str(folder / "images"))


@cache
def rpc() -> Any:
    """criu's RPC messages, rpc.proto."""
    load_pycriu()
    return importlib.import_module("pycriu.rpc_pb2")
