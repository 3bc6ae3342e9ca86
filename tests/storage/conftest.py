"""Fixtures of the storage tests. All of them are pure: no root, no network, no other process' memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for storage_doubles and backend_conformance

from storage_doubles import SMALL_CHUNKS, MemoryBackend

from cw_snapshot.storage.repository import Repository

settings.register_profile(
    "storage", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("storage")


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Every test ends with the threads that it began with."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while leaked := [t for t in threading.enumerate() if t not in before and t.is_alive()]:
        assert time.monotonic() < deadline, f"threads leaked: {leaked}"
        time.sleep(0.01)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def repository(backend: MemoryBackend) -> Repository:
    """A new repository in memory that cuts small chunks."""
    return Repository.init(backend, chunker=SMALL_CHUNKS)
