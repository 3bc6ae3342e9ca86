"""What a restore does with each file of the job: pure decisions.

The first rule: a file opened for appending keeps its later lines and is appended to; any other
file must be what it was at the snapshot, or the restore is refused before a task exists, unless
the user chose what to do.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cw_snapshot.snapshot.file_evidence import FileRecord

_PERMISSIONS = 0o7777
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class FilePolicy(Enum):
    """What to do with a writable file that is not what it was (`--files`)."""

    REFUSE = "refuse"
    REWIND = "rewind"
    """Cut it back to the snapshot; what is cut off is saved beside it."""
    KEEP = "keep"
    """Leave it as it is now; a sequential writer goes on at its new end."""
    REDIRECT = "redirect"
    """Give the job a copy, as of the snapshot, in another folder."""


class Act(Enum):
    """What is done to a file and to its entry in the images."""

    USE = "use"
    APPEND = "append"
    """Used as it is, whatever its size."""
    CREATE = "create"
    """Made anew from the bytes in the snapshot."""
    CREATE_EMPTY = "create-empty"
    REWIND = "rewind"
    REWRITE = "rewrite"
    """Replaced by a new file with the bytes in the snapshot; the present one gets another name."""
    KEEP = "keep"
    REDIRECT = "redirect"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class FileNow:
    """A file as it is found at restore."""

    exists: bool
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    build_id: str = ""
    same_prefix: bool | None = None
    """Whether the first bytes, as many as the snapshot knows of, are the same; None = unknown."""

    @property
    def other_kind(self) -> str:
        """What stands there instead of a regular file; else empty."""
        if not self.exists or stat.S_ISREG(self.mode):
            return ""
        return _KINDS.get(stat.S_IFMT(self.mode), "something that is no file")


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one file and why."""

    record: FileRecord
    act: Act
    why: str = ""
    unproven: bool = False
    """The bytes before the snapshot's end could not be compared."""


def lead(records: Sequence[FileRecord]) -> FileRecord:
    """The record that decides about a file which is open several times: one that writes anywhere,
    before one that appends, before one that reads."""
    return max(records, key=lambda r: 2 * (r.writable and not r.append) + r.writable)


def decide(record: FileRecord, now: FileNow, policy: FilePolicy, *, own_log: bool = False) -> Decision:
    """Decide about one file by its leading record.

    :param own_log: it is the log that `run` gave the job: made again where it is missing, and where
        `logs` looks for it whatever the policy.
    """
    if now.other_kind:
        return Decision(record, Act.REFUSE, f"it is {now.other_kind} now")
    if own_log and record.append:
        return (
            Decision(record, Act.APPEND) if now.exists else Decision(record, Act.CREATE_EMPTY, "it is gone")
        )
    if record.writable:
        return _decide_writable(record, now, policy)
    if not now.exists:
        return _recreate(record)
    if why := _difference(record, now):
        return Decision(record, Act.REFUSE, why)
    return Decision(record, Act.USE)


def _recreate(record: FileRecord) -> Decision:
    if record.carried:
        return Decision(record, Act.CREATE, "it is gone")
    return Decision(record, Act.REFUSE, "it does not exist")


def _other_mode(record: FileRecord, now: FileNow) -> str:
    """criu checks the mode of every file."""
    if record.mode & _PERMISSIONS == now.mode & _PERMISSIONS:
        return ""
    return f"its mode is {now.mode & _PERMISSIONS:o}, it was {record.mode & _PERMISSIONS:o}"


def _difference(record: FileRecord, now: FileNow) -> str:
    """Why a file can't be taken for the one of the snapshot; empty when it can."""
    if why := _other_mode(record, now):
        return why
    if now.size > record.size:
        return f"it grew from {record.size} to {now.size} bytes"
    if now.size < record.size:
        return f"it shrank from {record.size} to {now.size} bytes"
    if record.build_id:
        # A library: times differ between nodes, the build-id does not.
        return (
            ""
            if now.build_id == record.build_id
            else f"it is another build ({now.build_id or 'no build-id'})"
        )
    if now.same_prefix or (now.mtime_ns == record.mtime_ns and not record.mapped):
        return ""
    if now.same_prefix is None:
        return _unknown(record)
    return "its content has changed"


def _unknown(record: FileRecord) -> str:
    if not record.sampled:
        return "it was replaced or written to since, and its content at the snapshot is not known"
    seconds = f"{record.mtime_ns // 10**9}.{record.mtime_ns % 10**9:09}"
    return (
        "it has other times, and only samples of its content are known, which agree; "
        f"if it is the same, set its time back: touch -d @{seconds} {shlex.quote(record.path)}"
    )


def _decide_writable(record: FileRecord, now: FileNow, policy: FilePolicy) -> Decision:
    unproven = now.same_prefix is None
    if policy is FilePolicy.REDIRECT:
        if record.carried or (now.exists and now.size >= record.size and now.same_prefix is not False):
            return Decision(record, Act.REDIRECT, unproven=unproven and not record.carried)
        why = "its content as of the snapshot no longer exists, so it can't be copied"
        return Decision(record, Act.REFUSE, why)
    if not now.exists:
        if not record.carried and policy is FilePolicy.KEEP and record.append:
            return Decision(record, Act.CREATE_EMPTY, "it is gone")
        return _recreate(record)
    if record.append:
        if why := _other_mode(record, now):
            return Decision(record, Act.REFUSE, why)
        return Decision(record, Act.APPEND)
    why = _difference(record, now)
    if not why:
        return Decision(record, Act.USE)
    if policy is FilePolicy.KEEP:
        return Decision(record, Act.KEEP, why)
    if policy is FilePolicy.REWIND:
        if record.carried:
            return Decision(record, Act.REWRITE, why)
        if now.size >= record.size and now.same_prefix is not False:
            return Decision(record, Act.REWIND, why, unproven)
        return Decision(record, Act.REFUSE, why + "; what is lost can't be brought back by cutting")
    return Decision(record, Act.REFUSE, why)
