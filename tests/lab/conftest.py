"""Labs of tests: named so that parallel runs don't meet, and taken down in the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cw_snapshot.lab import labs
from cw_snapshot.lab.labs import Lab, LabNotFoundError

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """`make_lab(nodes=2, nics=2, suffix="")`: a lab of this test."""
    made: list[str] = []

    def make(nodes: int = 2, nics: int = 2, suffix: str = "") -> Lab:
        name = f"test{os.getpid()}{suffix}"
        made.append(name)
        return labs.up(name, nodes, nics)[0]

    try:
        yield make
    finally:
        for name in made:
            with suppress(LabNotFoundError):
                labs.down(name)
