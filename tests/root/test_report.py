"""Reports about real operations: nothing that is secret is in them, whatever has become of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.engine import COMMAND, COUNTER, Engine
from tests.root.test_kill_table import die

pytestmark = pytest.mark.root

SECRETS = [f"Planted-{n}-Secret" for n in range(5)]


def report(engine: Engine, wanted: str = "latest") -> dict[str, str]:
    """The members of a report, checked to hold no secret."""
    done = engine.ok("report", wanted, "--json", "--force")
    with tarfile.open(done.json["path"]) as tar:
        files = {m.name.partition("/")[2]: tar.extractfile(m) for m in tar.getmembers()}
        members = {name: file.read().decode() for name, file in files.items() if file}
    for name, text in {**members, "stderr": done.err}.items():
        assert not [secret for secret in SECRETS if secret in text], name
    return members


@pytest.fixture
def job(engine: Engine) -> Engine:
    """A job with secrets in its environment and arguments."""
    environment = {**engine.environment, "HF_TOKEN": SECRETS[0], "DB": f"mysql://u:{SECRETS[1]}@host/x"}
    arguments = ["--api-key", SECRETS[2], f"--data=https://host/?X-Amz-Signature={SECRETS[3]}", SECRETS[0]]
    command = [sys.executable, "-u", "-c", COUNTER, *arguments]
    engine.ok("run", "--job-id", "job", "--", *command, env=environment)
    engine.wait_lines("job", 3)
    engine.environment["CW_TEST_PASSWORD"] = SECRETS[4]
    return engine


def test_a_take_and_its_restore(job: Engine) -> None:
    snapshot = job.take("job")["snapshot"]
    members = report(job)
    operation = json.loads(members["operation.json"])
    assert operation["result"]["pause_parts_seconds"]["went"] > 0
    assert operation["settings"]["max_pause_seconds"] == 5
    assert json.loads(members["tree.json"])["of"] == f"the snapshot {snapshot}"
    assert "HF_TOKEN=<redacted>" in members["tree.json"]
    job.stop("job")
    job.restore("latest:job")
    members = report(job)
    assert json.loads(members["operation.json"])["result"]["phase_seconds"]["go"] > 0
    assert json.loads(members["take-of-the-snapshot.json"])["result"]["snapshot"] == snapshot


@pytest.mark.parametrize(("victim", "standing"), [("command", "died"), ("criu", "criu-died")])
def test_what_died(job: Engine, victim: str, standing: str) -> None:
    die(job, victim, "before:skeleton", "take", "job")
    job.assert_clean()
    members = report(job)
    assert standing in members["README.txt"].splitlines()[0]
    assert "logs/dump.log" in members
    # No snapshot, so the tree is the one that runs.
    assert json.loads(members["tree.json"])["of"] == "the job as it is now"
    operation = json.loads(members["operation.json"])
    if victim == "criu":
        assert operation["result"]["pause_parts_seconds"]["stopped"] > 0
    assert operation["root"] == job.root("job")


def test_to_a_pipe(job: Engine, tmp_path: Path) -> None:
    job.take("job")
    done = subprocess.run(
        [COMMAND, "report", "latest:job", "--output", "-"],
        env=job.environment,
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        assert tar.getnames()
    assert [p.name for p in tmp_path.glob("cw-snapshot*")] == []
