"""The criu releases and kernels that the root tier is run with.

A test marked `every_criu` runs with each of them; the others with the first only. `--criu-variant NAME`
runs the whole tier with one. Every variant has pytest processes, or at least commands, of its own:
pycriu's messages of two releases don't go into one process.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cw_snapshot.errors import CwError
from cw_snapshot.snapshot.criu_binary import GUARDS_SINCE, Criu, bundled_criu, find_criu

NEWER_BUNDLE = Path(sys.prefix) / "lib" / "cw-snapshot" / "criu-4.2"
"""Made by `scripts/test`; a user's set-up has no need of it."""


@dataclass(frozen=True)
class Variant:
    """A criu, and whether the kernel seems to be one before 6.7.

    :param bundle: None for the criu that is used here anyway.
    """

    name: str
    bundle: Path | None = None
    old_kernel: bool = False

    def environment(self) -> dict[str, str]:
        """What chooses it."""
        chosen = {"CW_SNAPSHOT_CRIU_BUNDLE": str(self.bundle)} if self.bundle else {}
        return chosen | ({"CW_SNAPSHOT_TEST_NO_PAGEMAP_SCAN": "1"} if self.old_kernel else {})

    @property
    def keeps_guards(self) -> bool:
        """Whether MADV_GUARD_INSTALL regions are taken and not refused."""
        return criu_of(self).dumps_guards and not self.old_kernel


USUAL = Variant("criu4.1")
NEWER = Variant("criu4.2", NEWER_BUNDLE)
VARIANTS = (
    USUAL,
    Variant("criu4.1-oldkernel", old_kernel=True),
    NEWER,
    Variant("criu4.2-oldkernel", NEWER_BUNDLE, old_kernel=True),
)


@cache
def criu_of(variant: Variant) -> Criu:
    if variant.bundle is None:
        return find_criu()
    found = bundled_criu(variant.bundle)
    assert found and found.version >= GUARDS_SINCE, f"no criu >= 4.2 in {variant.bundle}"
    return found


def there(variant: Variant) -> bool:
    return variant.bundle is None or (variant.bundle / "usr/sbin/criu").is_file()


def header() -> list[str]:
    """What is tested with which criu, and what is not."""
    lines = []
    for variant in VARIANTS:
        if variant.old_kernel:
            continue
        if not there(variant):
            lines.append(missing())
            continue
        try:
            criu = criu_of(variant)
            lines.append(f"{variant.name}: criu {criu.version_text} at {criu.binary}")
        except (CwError, AssertionError) as error:
            lines.append(f"{variant.name}: {error}")
    return lines


def missing() -> str:
    """A loud line where a variant can't be had; else nothing."""
    if all(map(there, VARIANTS)):
        return ""
    return f"NOT TESTED WITH CRIU 4.2: it is not in {NEWER_BUNDLE}; scripts/test tells why"
