"""A snapshot is restored by the criu that made it and by newer ones, and refused by older ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import criu_variants
from tests.criu_variants import NEWER, USUAL, criu_of
from tests.engine import Engine
from tests.root.test_regions import assert_whole

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not criu_variants.there(NEWER), reason=criu_variants.missing()),
]


@pytest.fixture(autouse=True)
def no_variant_chosen(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--criu-variant"):
        pytest.skip("chooses its variants itself")


def test_newer_restores_older_and_not_the_other_way(engine: Engine, built: dict[str, Path]) -> None:
    """Shared memory, and pages that criu writes itself, lie in images whose format has changed."""
    usual = f"criu {criu_of(USUAL).version_text}"
    newer = engine.environment | NEWER.environment()
    engine.job("regions", [built["regions"], engine.folder / "mapped.bin"])
    engine.wait_lines("regions", 5)
    engine.take("regions")
    engine.stop("regions")
    engine.ok("restore", "latest:regions", env=newer)
    assert_whole(engine.wait_lines("regions", 10))
    engine.ok("take", "regions", env=newer)
    engine.stop("regions")
    lines = len(engine.log("regions"))
    done = engine.run("restore", "latest:regions", "--json")
    assert done.code == 3, done.err
    (evidence,) = done.json["evidence"]
    assert f"made by criu {criu_of(NEWER).version_text}, this is {usual.split()[1]}" in evidence
    assert "install criu 4.2 or newer" in evidence
    assert len(engine.log("regions")) == lines
    engine.ok("restore", "latest:regions", env=newer)
    assert_whole(engine.wait_lines("regions", 10))
    engine.assert_clean()
