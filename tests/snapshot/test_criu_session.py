"""A criu that dies, or must be killed, while it gives up: the report says that the job may be harmed."""

from __future__ import annotations

import socket
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from cw_snapshot.snapshot.criu_binary import find_criu
from cw_snapshot.snapshot.criu_session import CriuDiedError, CriuSession
from cw_snapshot.snapshot.phases import Limits
from cw_snapshot.snapshot.take import NodeTake
from cw_snapshot.snapshot.tree import find

SHORT = timedelta(milliseconds=50)
LIMITS = Limits(SHORT, SHORT, 1, SHORT, SHORT, SHORT, SHORT, None)


@pytest.mark.parametrize("dies", [True, False])
def test_giving_up_fails(tmp_path: Path, dies: bool) -> None:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        session = CriuSession(ours, what="dump the job", log=tmp_path / "log", process=process)
        if dies:
            theirs.close()
        take = NodeTake(find(process.pid), criu=find_criu(), name="test", limits=LIMITS)
        with pytest.raises(CriuDiedError) as caught:
            take._give_up(session)
        assert caught.value.exit_code == 10
        assert session.died
        assert process.wait(10) == -9
    finally:
        process.kill()
        ours.close()
        theirs.close()
