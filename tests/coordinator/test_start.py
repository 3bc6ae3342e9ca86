"""The environment of a job, and recognising torchrun."""

from __future__ import annotations

import pytest

from cw_snapshot.coordinator.start import caller_environment, free_port, is_torchrun, job_environment


def test_environment_for_plain_ranks_and_for_torchrun() -> None:
    found = job_environment({"PATH": "/bin"}, nnodes=2, node_rank=1, address="10.0.0.1", port=29500)
    assert found == {
        "PATH": "/bin",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "NNODES": "2",
        "NODE_RANK": "1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500",
    }


def test_a_rendezvous_that_was_chosen_is_kept() -> None:
    given = {"MASTER_ADDR": "host", "MASTER_PORT": "1"}
    found = job_environment(given, nnodes=1, node_rank=0, address="127.0.0.1", port=2)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("host", "1")
    assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == ("host", "1")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["torchrun", "x.py"], True),
        (["/venv/bin/torchrun"], True),
        (["python", "-u", "-m", "torch.distributed.run", "x.py"], True),
        (["python", "-m", "torch.distributed.launch"], True),
        (["python", "torchrun.py"], False),
        (["python", "-m", "pdb"], False),
    ],
)
def test_torchrun(command: list[str], expected: bool) -> None:
    assert is_torchrun(command) is expected


def test_the_port_is_free_and_below_the_ephemeral_ones() -> None:
    assert 20000 <= free_port("a") < 30000
    assert free_port("a") == free_port("a")


def test_our_own_variables_do_not_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CW_SNAPSHOT_STATE_DIR", "/x")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert caller_environment()["OPENBLAS_NUM_THREADS"] == "1", "the caller's own choice is kept"
    monkeypatch.setenv("CW_SNAPSHOT_OWN_OPENBLAS", "1")
    found = caller_environment()
    assert "OPENBLAS_NUM_THREADS" not in found
    assert not any(name.startswith("CW_SNAPSHOT_") for name in found)
