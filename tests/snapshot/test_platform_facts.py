"""What a snapshot of another machine is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.findings import Severity
from cw_snapshot.snapshot.platform_facts import differences, facts


def criu(*version: int) -> Criu:
    return Criu(Path("criu"), version, Path())


@pytest.mark.parametrize(
    ("made_by", "here", "refused"),
    [
        ((4, 1, 1), (4, 1, 1), False),
        ((4, 1, 1), (4, 2), False),
        ((4, 2, 1), (4, 2), False),
        ((4, 2), (4, 1, 1), True),
        ((5, 0), (4, 9), True),
    ],
)
def test_images_of_a_newer_criu_are_refused(
    made_by: tuple[int, ...], here: tuple[int, ...], refused: bool
) -> None:
    found = differences(facts(criu(*made_by)), criu(*here))
    assert [f.code for f in found if f.severity is Severity.REFUSAL] == ["criu-older"] * refused
