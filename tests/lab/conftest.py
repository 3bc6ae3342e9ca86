"""Labs of tests: named so that parallel runs don't meet, and taken down in the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cw_snapshot.lab import labs
from cw_snapshot.lab.labs import Lab, LabNotFoundError
from tests.engine import Engine, losses
from tests.lab.cluster import STEPS, TRAIN, Cluster, options

MakeLab = Callable[..., Lab]
Losses = dict[int, dict[str, str]]
"""Of each step of each rank."""


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


@pytest.fixture
def cluster(engine: Engine, make_lab: MakeLab) -> Iterator[Cluster]:
    yield Cluster(engine, make_lab(nodes=4, nics=2))


def undisturbed_losses(folder: Path, steps: int) -> Losses:
    """The losses of a training of two ranks that nobody touches."""
    engine = Engine(folder)
    out = engine.folder / "out"
    try:
        command = [sys.executable, "-u", TRAIN, "--out", out, *options(steps)]
        engine.job("reference", command, "--nproc-per-node", "2")
        assert engine.run("wait", "reference").code == 0, engine.log("reference")
    finally:
        engine.clean_up()
    return {rank: {x.split()[1]: x.split()[2] for x in lines} for rank, lines in losses(out).items()}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), STEPS)
