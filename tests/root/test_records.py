"""What happens to a tree whose record can't be saved."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from cw_snapshot.coordinator.jobs import JobRecord, JobStore
from cw_snapshot.coordinator.restore import RestoreRequest, restore
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.start import StartRequest, caller_environment, start_job
from cw_snapshot.snapshot import procfs
from cw_snapshot.storage.repository import Repository
from tests.engine import COMMAND, COUNTER, Engine, eventually

pytestmark = pytest.mark.root


class FullStore(JobStore):
    """A state directory without room; it remembers what it could not save."""

    def save(self, record: JobRecord) -> None:
        self.record = record
        raise OSError(errno.ENOSPC, "No space left on device")

    def ended(self) -> bool:
        try:
            stat = procfs.read_stat(self.record.init)
        except procfs.ProcessGoneError:
            return True
        return stat.starttime != self.record.init_starttime or stat.state in "ZX"


class Quiet:
    def phase(self, name: str) -> None: ...
    def pages(self, done: int, total: int) -> None: ...


def test_a_job_that_cannot_be_recorded_is_ended(engine: Engine) -> None:
    store = FullStore(engine.state)
    request = StartRequest("lost", ["sleep", "1000"], {}, folder=Path("/"))
    with pytest.raises(OSError, match="No space"):
        start_job(store, request, caller_environment())
    eventually("it has ended", store.ended, 10)


def test_a_restored_job_that_cannot_be_recorded_is_ended(engine: Engine) -> None:
    engine.job("counter", [sys.executable, "-u", "-c", COUNTER])
    engine.wait_lines("counter", 3)
    engine.take("counter", "--stop")
    eventually("it has ended", lambda: engine.store.find("counter").state.value != "running")
    store = FullStore(engine.state)
    repository = Repository.open(engine.repository)
    settings = Settings(state_dir=engine.state, repository=str(engine.repository))
    with pytest.raises(OSError, match="No space"):
        restore(RestoreRequest(repository.find("latest:counter")), store, repository, settings, Quiet())
    eventually("it has ended", store.ended, 10)
    engine.assert_clean()
    engine.restore("latest:counter")
    engine.wait_lines("counter", 3)


def test_limits_of_the_caller(engine: Engine) -> None:
    """The job gets the soft limit of `run`; a take with too low limits touches nothing."""
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    limited = 'ulimit -Sn 512; exec "$0" "$@"'
    words = ["run", "--job-id", "limits", "--wait", "--", sys.executable, "-c", code]
    subprocess.run(["bash", "-c", limited, COMMAND, *words], env=engine.environment, check=True)
    assert engine.log("limits") == ["512"]
    engine.counter()
    few = 'ulimit -n 900; exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", few, COMMAND, "take", "counter"], env=engine.environment, check=False
    )
    assert done.returncode == 3
    engine.wait_lines("counter", 3)
    done = subprocess.run(
        ["bash", "-c", limited, COMMAND, "take", "counter"], env=engine.environment, check=False
    )
    assert done.returncode == 0
