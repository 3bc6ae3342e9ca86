"""Finding the restored root among the children of a cw-init."""

from __future__ import annotations

import pytest

from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.launch import host_pid


def test_children_that_end_while_we_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """criu is a child of cw-init too and ends when it has restored."""

    def ns_pid(pid: int) -> int:
        if pid == 100:
            raise procfs.ProcessGoneError(pid=pid)
        return pid - 100

    monkeypatch.setattr(procfs, "children", lambda pid: [100, 102, 103])
    monkeypatch.setattr(procfs, "ns_pid", ns_pid)
    assert host_pid(1, 3) == 103
    with pytest.raises(procfs.ProcessGoneError):
        host_pid(1, 7)
