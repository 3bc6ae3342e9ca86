"""Limits: high for us, the caller's for a job."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from cw_snapshot.coordinator import limits
from cw_snapshot.coordinator.limits import (
    LimitsTooLowError,
    callers_limits,
    raise_descriptor_limit,
    refuse_low_limits,
)

INFINITY = resource.RLIM_INFINITY


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "_callers_soft", None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_raised_for_us_and_not_for_jobs() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    with callers_limits():
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (600, hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(
    ("files", "size", "word"), [(1023, INFINITY, "1023"), (1024, 4096, "4096"), (1024, INFINITY, "")]
)
def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, files: int, size: int, word: str) -> None:
    found = {resource.RLIMIT_NOFILE: (files, files), resource.RLIMIT_FSIZE: (size, size)}
    monkeypatch.setattr(limits.resource, "getrlimit", found.__getitem__)
    monkeypatch.setattr(limits.resource, "setrlimit", lambda which, values: None)
    if not word:
        refuse_low_limits()
        return
    with pytest.raises(LimitsTooLowError) as caught:
        refuse_low_limits()
    assert word in caught.value.evidence[0]
    assert caught.value.exit_code == 3
