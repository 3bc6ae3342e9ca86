"""Fixtures of all tiers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import criu_variants
from tests.criu_variants import USUAL, VARIANTS, Variant
from tests.engine import Engine, require_criu

_CHOSEN = pytest.StashKey[Variant]()


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [v.name for v in VARIANTS]
    parser.addoption(
        "--criu-variant", choices=names, help="run the whole root tier with this criu, on this kernel"
    )


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--criu-variant")
    if name is None:
        return
    config.stash[_CHOSEN] = variant = next(v for v in VARIANTS if v.name == name)
    if not criu_variants.there(variant):
        raise pytest.UsageError(criu_variants.missing())
    os.environ |= variant.environment()  # for tests that use the engine in this process


def pytest_report_header(config: pytest.Config) -> list[str]:
    return criu_variants.header()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if line := criu_variants.missing():
        terminalreporter.write_line(line, yellow=True, bold=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.definition.get_closest_marker("every_criu")
    if every and _CHOSEN not in metafunc.config.stash:
        wanted = (USUAL.name, *every.args) if every.args else [v.name for v in VARIANTS]
        there = [v for v in VARIANTS if v.name in wanted and criu_variants.there(v)]
        metafunc.parametrize("criu_variant", there, ids=[v.name for v in there])


@pytest.fixture
def criu_variant(request: pytest.FixtureRequest) -> Variant:
    """The criu and the kernel of this test; tests marked `every_criu` get each in turn."""
    return request.config.stash.get(_CHOSEN, USUAL)


@pytest.fixture
def engine(tmp_path: Path, criu_variant: Variant) -> Iterator[Engine]:
    """cw-snapshot with a state directory and a repository of its own; ends every job it started.

    Fails, and does not skip, where criu can't work: a root tier that skips proves nothing.
    """
    require_criu(criu_variant)
    made = Engine(tmp_path, criu_variant)
    try:
        yield made
    finally:
        made.clean_up()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Compiled test jobs, by name."""
    from tests.build import build_jobs

    yield build_jobs(tmp_path_factory.mktemp("jobs"))
