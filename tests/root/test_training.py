"""The project's main test: a real training comes back bit-identical."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine import Engine, eventually, losses, steps

pytestmark = pytest.mark.root

STEPS = 500
TRAINING = ("--steps", str(STEPS), "--width", "256", "--sleep", "0.02")


def ended(engine: Engine, name: str) -> None:
    done = engine.run("wait", name)
    assert done.code == 0, "\n".join(engine.log(name)[-20:])


def undisturbed_losses(folder: Path, options: Sequence[str]) -> dict[int, list[str]]:
    """The losses of a training that nobody touches."""
    engine = Engine(folder)
    try:
        engine.torch_job("reference", folder / "out", *options)
        ended(engine, "reference")
    finally:
        engine.clean_up()
    return losses(folder / "out")


@pytest.fixture
def slow(engine: Engine) -> Path:
    """While it exists the training is so slow that it can't end before what is done to it."""
    path = engine.folder / "slow"
    path.touch()
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    return undisturbed_losses(tmp_path_factory.mktemp("undisturbed"), TRAINING)


def compare(found: list[str], reference: list[str]) -> int:
    """Every line must be the reference's line of that step, whichever incarnation wrote it; steps
    begin again once for each restore. Returns how many lines there are more than steps."""
    expected = {line.split()[1]: line for line in reference}
    for line in found:
        assert line == expected[line.split()[1]]
    assert found[-1] == reference[-1], "the hash of the parameters"
    assert set(steps(found)) == set(steps(reference))
    return len(found) - len(reference)


@pytest.mark.every_criu
def test_losses_are_identical_after_kill_and_restore(
    engine: Engine, undisturbed: dict[int, list[str]], slow: Path
) -> None:
    out = engine.folder / "out"
    engine.torch_job("train", out, *TRAINING, "--slow-while", str(slow))
    eventually("it trains", lambda: len(losses(out).get(0, [])) > 10)
    report = engine.take("train")
    assert report["processes"] >= 7
    at_take = len(losses(out)[0])
    eventually("it trains on", lambda: len(losses(out)[0]) > at_take + 10)
    engine.stop("train")
    engine.restore("latest:train", "--files", "rewind")
    slow.unlink()
    ended(engine, "train")
    for rank, lines in losses(out).items():
        assert compare(lines, undisturbed[rank]) > 5, "steps after the snapshot were made twice"
    engine.assert_clean()


def test_ranks_started_by_us(engine: Engine, undisturbed: dict[int, list[str]], slow: Path) -> None:
    """--nproc-per-node instead of torchrun, and several takes on the way, without any kill."""
    import sys

    from tests.engine import TRAIN

    out = engine.folder / "out"
    command = [sys.executable, "-u", TRAIN, "--out", out, *TRAINING, "--slow-while", slow]
    engine.job("ranks", command, "--nproc-per-node", "2")
    for lines in (10, 20, 30):
        eventually("it trains", lambda lines=lines: len(losses(out).get(0, [])) > lines)
        engine.take("ranks")
    slow.unlink()
    ended(engine, "ranks")
    for rank, lines in losses(out).items():
        assert compare(lines, undisturbed[rank]) == 0
    engine.assert_clean()


def test_torchrun_and_our_launcher_exclude_each_other(engine: Engine) -> None:
    done = engine.run("run", "--job-id", "both", "--nproc-per-node", "2", "--", "torchrun", "x.py")
    assert done.code == 2
    assert "torchrun" in done.err


def test_snapshot_of_a_snapshot(
    engine: Engine, undisturbed: dict[int, list[str]], slow: Path, tmp_path: Path
) -> None:
    """take -> kill -> restore -> take -> kill -> restore."""
    out = tmp_path / "out"
    engine.torch_job("twice", out, *TRAINING, "--slow-while", str(slow))
    for target in (10, 20):
        eventually("it trains", lambda target=target: len(losses(out).get(0, [])) > target)
        engine.take("twice")
        engine.stop("twice")
        engine.restore("latest:twice", "--files", "rewind")
    slow.unlink()
    ended(engine, "twice")
    for rank, lines in losses(out).items():
        compare(lines, undisturbed[rank])
