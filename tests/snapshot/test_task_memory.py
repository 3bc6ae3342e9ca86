"""The memory of one task, read from its shadow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cw_snapshot.snapshot import tree
from cw_snapshot.snapshot.shadows import ShadowDiedError
from cw_snapshot.snapshot.task_memory import TaskMemory


def test_a_shadow_that_is_dead_is_told_as_that(tmp_path: Path) -> None:
    """Its mappings read as none at all, which looks as if the job had changed them."""
    memory = TaskMemory(tree.find(os.getpid()).root, tmp_path, frozenset())
    with pytest.raises(ShadowDiedError, match=str(os.getpid())):
        memory.source(os.getpid(), lambda: False, lambda: None)
