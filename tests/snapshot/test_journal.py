"""The controller's side of the shadow journal."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path

from cw_snapshot.snapshot.journal import Journal


def test_all_of_it_is_allocated(tmp_path: Path) -> None:
    """criu maps it: a store into a hole of a full tmpfs would be its death in mid-injection."""
    path = tmp_path / "journal"
    journal = Journal(path, 1000, hold=timedelta())
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 512 * 1000
    journal.close()


def test_shadows_that_are_not_to_be_tried(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", 2, hold=timedelta())
    journal.make_shadows_of([7, 8], refuse=errno.ENOMEM)
    assert [(e.pid, e.reason) for e in journal.entries()] == [
        (7, "not tried: Cannot allocate memory"),
        (8, "not tried: Cannot allocate memory"),
    ]
    journal.close()
