"""What a collapse would make of a job's facts; the name of a repository in records."""

from __future__ import annotations

from cw_snapshot.coordinator.expectation import collapsed, repository_name
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.snapshot.collapse import Candidate
from cw_snapshot.snapshot.predict import ForkSize, JobFacts

FORKS = (ForkSize(small_pages=2000, huge_pages=1, pid=7), ForkSize(small_pages=100, huge_pages=0, pid=8))
FACTS = JobFacts(2, 2, 10, 0, 60, FORKS, private_bytes=9 << 20, shared_bytes=0, carried_bytes=0)


def test_small_pages_become_huge_ones() -> None:
    after = collapsed(FACTS, [Candidate(7, 0, 512), Candidate(7, 2 << 20, 500), Candidate(9, 0, 400)])
    assert after.forks[0] == ForkSize(small_pages=2000 - 1012, huge_pages=3, pid=7)
    assert after.forks[1] == FORKS[1]
    # What was not there is there afterwards.
    assert after.private_bytes == FACTS.private_bytes + (12 + 112) * 4096
    assert collapsed(FACTS, []) == FACTS


def test_options_of_an_address_are_not_recorded() -> None:
    assert repository_name(Settings()) is None
    assert repository_name(Settings(repository="/mnt/r")) == "/mnt/r"
    assert repository_name(Settings(repository="s3://b/p?endpoint=http://x")) == "s3://b/p"
