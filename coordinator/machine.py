"""The pace of this machine since its boot, kept in the state directory.

Other work makes a measurement longer and nothing makes it shorter, so the best one counts, and others
are made, soon and then now and then: one that met a busy moment does not stay for long.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.state import StateDamagedError, make_private, read_json, write_json
from cw_snapshot.snapshot import machine_pace, procfs
from cw_snapshot.snapshot.predict import Pace

_SCHEMA = "cw-snapshot/machine/1"
_NAMES = tuple(field.name for field in fields(Pace))
_FIRST_AGAIN_SECONDS, _LATER = 5.0, 4
AGAIN_AFTER_SECONDS = 600.0
"""The longest time between two measurements; the first ones follow each other sooner."""


@dataclass(frozen=True, slots=True)
class _Kept:
    pace: Pace
    at: float
    """CLOCK_BOOTTIME of the last measurement."""
    count: int
    """Of measurements since the boot."""

    @property
    def holds_until(self) -> float:
        again = _FIRST_AGAIN_SECONDS * float(_LATER) ** min(self.count - 1, 10)
        return self.at + min(again, AGAIN_AFTER_SECONDS)


def pace(state_dir: Path) -> Pace:
    """How fast this machine is at its best. Where that can be neither measured nor kept, it is
    assumed: a prediction is no reason for a take to fail."""
    path = state_dir / "machine.json"
    boot, now = procfs.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        known = _kept(read_json(path), boot)
    except StateDamagedError:
        known = None  # written anew
    if known is not None and now < known.holds_until:
        return known.pace
    try:
        found = machine_pace.measure()
    except OSError:
        return known.pace if known else replace(Pace(), cores=machine_pace.cores())
    if known is not None:
        found = best(known.pace, found)
    try:
        make_private(state_dir)
        count = known.count + 1 if known else 1
        document = {"schema": _SCHEMA, "boot": boot, "at": now, "count": count, "pace": asdict(found)}
        write_json(path, document)
    except OSError:
        return found
    return found


def best(one: Pace, other: Pace) -> Pace:
    """The shorter time of each kind."""
    return replace(
        one,
        page_seconds=min(one.page_seconds, other.page_seconds),
        byte_seconds=min(one.byte_seconds, other.byte_seconds),
        look_seconds=min(one.look_seconds, other.look_seconds),
    )


def _kept(document: Any, boot: str) -> _Kept | None:
    """The pace that was measured since this boot, on as many cores as there are now."""
    try:
        if document["schema"] != _SCHEMA or document["boot"] != boot:
            return None
        known = Pace(**{name: document["pace"][name] for name in _NAMES})
        kept = _Kept(known, float(document["at"]), int(document["count"]))
    except (KeyError, TypeError, ValueError):
        return None
    return kept if known.cores == machine_pace.cores() else None
