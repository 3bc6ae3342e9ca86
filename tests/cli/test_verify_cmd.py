"""`verify` of a snapshot."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


def test_sound(run: Run, snapshot: str) -> None:
    assert run("verify", snapshot, "--json").json["ok"] is True
    assert "is sound" in run("verify", "best").out


@pytest.mark.parametrize("share", ["120%", "0%", "0", "much"])
def test_share(run: Run, snapshot: str, share: str) -> None:
    done = run("verify", snapshot, f"--sample={share}")
    assert done.code == 2
    assert share in done.err


def test_seed(run: Run, snapshot: str) -> None:
    done = run("verify", snapshot, "--seed=-5")
    assert done.code == 2
    assert "--seed" in done.err
