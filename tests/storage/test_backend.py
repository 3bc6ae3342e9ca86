"""The double that most tests run on keeps the contract too."""

from __future__ import annotations

import pytest
from backend_conformance import BackendConformance
from storage_doubles import FaultyBackend, MemoryBackend

from cw_snapshot.storage.backend import Backend


class TestMemoryBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class TestFaultyBackendWithoutFaults(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return FaultyBackend(MemoryBackend())
