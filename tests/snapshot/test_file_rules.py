"""What happens to a file at restore, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cw_snapshot.snapshot.file_evidence import FileRecord
from cw_snapshot.snapshot.file_rules import Act, FileNow, FilePolicy, decide, lead

READ = FileRecord(1, "/data", flags=0, pos=0, size=100, mode=0o100644, mtime_ns=5, digest="d")
LIBRARY = replace(READ, path="/lib.so", build_id="aa", digest="")
WRITE = replace(READ, flags=1, pos=100)
APPEND = replace(WRITE, flags=0o2001)
MAPPED = replace(READ, mapped=True)
CARRIED = replace(MAPPED, carried="file/0")

SAME = FileNow(True, 100, 0o100644, 5, "", True)
TOUCHED = replace(SAME, mtime_ns=6)
GROWN = replace(TOUCHED, size=150)
OVERWRITTEN = replace(TOUCHED, same_prefix=False)
UNKNOWN = replace(TOUCHED, same_prefix=None)
GONE = FileNow(exists=False)


@pytest.mark.parametrize(
    ("record", "now", "act"),
    [
        (READ, SAME, Act.USE),
        (READ, TOUCHED, Act.USE),
        (READ, OVERWRITTEN, Act.REFUSE),
        (READ, UNKNOWN, Act.REFUSE),
        (READ, GROWN, Act.REFUSE),
        (READ, GONE, Act.REFUSE),
        (READ, replace(SAME, mode=0o100600), Act.REFUSE),
        (LIBRARY, replace(TOUCHED, build_id="aa"), Act.USE),
        (LIBRARY, replace(SAME, build_id="bb"), Act.REFUSE),
        (APPEND, GROWN, Act.APPEND),
        (APPEND, replace(SAME, size=10), Act.APPEND),
        (APPEND, GONE, Act.REFUSE),
        (APPEND, replace(GROWN, mode=0o100600), Act.REFUSE),
        (WRITE, SAME, Act.USE),
        (WRITE, TOUCHED, Act.USE),
        (WRITE, GROWN, Act.REFUSE),
        (WRITE, OVERWRITTEN, Act.REFUSE),
        (MAPPED, replace(SAME, same_prefix=None), Act.REFUSE),
        (MAPPED, SAME, Act.USE),
        (CARRIED, GONE, Act.CREATE),
        (CARRIED, OVERWRITTEN, Act.REFUSE),
    ],
)
def test_without_a_choice(record: FileRecord, now: FileNow, act: Act) -> None:
    decision = decide(record, now, FilePolicy.REFUSE)
    assert decision.act is act
    assert decision.why or act in (Act.USE, Act.APPEND)


@pytest.mark.parametrize(
    ("policy", "record", "now", "act"),
    [
        (FilePolicy.REWIND, WRITE, GROWN, Act.REWIND),
        (FilePolicy.REWIND, WRITE, replace(GROWN, same_prefix=None), Act.REWIND),
        (FilePolicy.REWIND, WRITE, replace(GROWN, same_prefix=False), Act.REFUSE),
        (FilePolicy.REWIND, WRITE, replace(SAME, size=10), Act.REFUSE),
        (FilePolicy.REWIND, CARRIED, OVERWRITTEN, Act.REWRITE),
        (FilePolicy.REWIND, APPEND, GROWN, Act.APPEND),
        (FilePolicy.KEEP, WRITE, GROWN, Act.KEEP),
        (FilePolicy.KEEP, WRITE, OVERWRITTEN, Act.KEEP),
        (FilePolicy.KEEP, APPEND, GONE, Act.CREATE_EMPTY),
        (FilePolicy.KEEP, READ, OVERWRITTEN, Act.REFUSE),
        (FilePolicy.REDIRECT, WRITE, GROWN, Act.REDIRECT),
        (FilePolicy.REDIRECT, APPEND, GROWN, Act.REDIRECT),
        (FilePolicy.REDIRECT, WRITE, OVERWRITTEN, Act.REFUSE),
        (FilePolicy.REDIRECT, CARRIED, GONE, Act.REDIRECT),
        (FilePolicy.REDIRECT, READ, SAME, Act.USE),
    ],
)
def test_with_a_choice(policy: FilePolicy, record: FileRecord, now: FileNow, act: Act) -> None:
    assert decide(record, now, policy).act is act


@pytest.mark.parametrize("policy", FilePolicy)
def test_the_log_that_we_gave_the_job_is_never_chosen_about(policy: FilePolicy) -> None:
    assert decide(APPEND, GROWN, policy, own_log=True).act is Act.APPEND
    assert decide(APPEND, GONE, policy, own_log=True).act is Act.CREATE_EMPTY


def test_what_was_not_proved_is_said() -> None:
    assert decide(WRITE, replace(GROWN, same_prefix=None), FilePolicy.REWIND).unproven
    assert not decide(WRITE, GROWN, FilePolicy.REWIND).unproven


def test_the_record_that_writes_leads() -> None:
    assert lead([READ, APPEND]) is APPEND
    assert lead([APPEND, WRITE, READ]) is WRITE
    assert lead([READ, MAPPED]) is MAPPED
