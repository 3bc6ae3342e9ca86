"""Fixtures of all tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import Engine, require_criu


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """cw-snapshot with a state directory and a repository of its own; ends every job it started.

    Fails, and does not skip, where criu can't work: a root tier that skips proves nothing.
    """
    require_criu()
    made = Engine(tmp_path)
    try:
        yield made
    finally:
        made.clean_up()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Compiled test jobs, by name."""
    from tests.build import build_jobs

    yield build_jobs(tmp_path_factory.mktemp("jobs"))
