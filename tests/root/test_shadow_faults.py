"""The shadow maker fails at each of its steps: the job is unharmed and the snapshot is right."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.take import TakeRequest, take
from cw_snapshot.snapshot.journal import Fault, Step
from cw_snapshot.storage.repository import Repository
from cw_snapshot.storage.writer import WriteStats
from tests.engine import Engine
from tests.root.test_regions import assert_whole

pytestmark = pytest.mark.root


class Quiet:
    def phase(self, name: str) -> None: ...
    def pages(self, stats: WriteStats, total: int) -> None: ...


@pytest.mark.parametrize("step", [Step.PREPARE, Step.MIDDLE, Step.SHADOW, Step.DETACH])
def test_a_failing_step_falls_back_to_reading_the_stopped_job(
    engine: Engine, built: dict[str, Path], step: Step
) -> None:
    engine.job("regions", [built["regions"], engine.folder / "mapped.bin"])
    engine.wait_lines("regions", 3)
    record = engine.store.running("regions")
    settings = Settings(
        state_dir=engine.state, repository=str(engine.repository), max_pause=timedelta(seconds=30)
    )
    request = TakeRequest("regions", record.root_pid, record, fault=Fault(step, errno.ENOMEM))
    report = take(request, engine.store, Repository.open(engine.repository), settings, Quiet())
    assert len(report.without_shadow) == 1
    assert step.name.lower() in report.without_shadow[0]
    assert_whole(engine.wait_lines("regions", 10))
    engine.assert_clean()
    engine.stop("regions")
    engine.restore(report.snapshot)
    assert_whole(engine.wait_lines("regions", 20))
