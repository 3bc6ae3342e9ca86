"""What jobs have printed: a piece at a time, here or from another node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from cw_snapshot.coordinator.jobs import JobState, JobStore
from cw_snapshot.errors import CwError, ExitCode

BLOCK = 1 << 20
"""Bytes of one piece at most."""
_STEP = 1 << 16


class LogGoneError(CwError):
    """The log {path} of job {job} does not exist.

    Fix: it was moved or deleted; while the job runs, /proc/PID/fd/1 of its processes is that file.
    """

    exit_code = ExitCode.NOT_FOUND


@dataclass(frozen=True, slots=True)
class LogBlock:
    """A piece of a log."""

    data: bytes
    offset: int
    """Of the byte after it."""
    ended: bool
    """The job has ended, and this is the end of what it has printed."""
    path: str


ReadLog = Callable[[int, int | None], LogBlock]
"""The piece from an offset on; or from the beginning of the last so many lines, unless None."""


def read_log(store: JobStore, job: str, offset: int, tail: int | None) -> LogBlock:
    """A piece of what a job of this node has printed.

    :raises JobNotFoundError: there is no such job.
    :raises LogGoneError: its log is not there any more.
    """
    view = store.find(job)  # before the log is read: what a job that has ended has printed is all there
    path = Path(view.record.log)
    try:
        with path.open("rb") as file:
            begin = offset if tail is None else tail_offset(file, tail)
            file.seek(begin)
            data = file.read(BLOCK)
    except FileNotFoundError as error:
        raise LogGoneError(path=path, job=job) from error
    ended = view.state is not JobState.RUNNING and len(data) < BLOCK
    return LogBlock(data, begin + len(data), ended, str(path))


def tail_offset(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin; a line that is not ended yet is one."""
    end = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    if end:
        file.seek(end - 1)
        lines += file.read(1) == b"\n"
    while end:
        begin = max(0, end - _STEP)
        file.seek(begin)
        block = file.read(end - begin)
        found = block.count(b"\n")
        if found >= lines:
            at = len(block)
            for _ in range(lines):
                at = block.rindex(b"\n", 0, at)
            return begin + at + 1
        lines -= found
        end = begin
    return 0


@dataclass(slots=True)
class _Source:
    read: ReadLog
    tail: int | None
    offset: int = 0
    ended: bool = False
    silent: bool = False

    def next(self) -> LogBlock:
        block = self.read(self.offset, self.tail)
        self.offset, self.tail, self.ended = block.offset, None, block.ended
        return block


def read_to_present_end(read: ReadLog, tail: int | None) -> Iterator[LogBlock]:
    """What there is now, at least one piece."""
    source = _Source(read, tail)
    while True:
        block = source.next()
        yield block
        if len(block.data) < BLOCK:
            return


def follow(
    reads: Mapping[str, ReadLog], tail: int | None, poll: timedelta, tell: Callable[[str], None]
) -> Iterator[tuple[str, bytes]]:
    """Pieces of several logs as they come, until all their jobs have ended.

    A node that does not answer is asked again.

    :param tell: what the user should know, once for each node that does not answer.
    """
    sources = {name: _Source(read, tail) for name, read in reads.items()}
    while not all(source.ended for source in sources.values()):
        idle = True
        for name, source in sources.items():
            if source.ended:
                continue
            try:
                block = source.next()
            except CwError as error:
                if error.exit_code is ExitCode.NOT_FOUND:
                    raise
                if not source.silent:
                    tell(f"{error.message}; asking again")
                source.silent = True
                continue
            source.silent = False
            if block.data:
                idle = False
                yield name, block.data
        if idle:
            time.sleep(poll.total_seconds())


class Prefixer:
    """Lines of several logs with the name of their source before each; only whole lines come out."""

    def __init__(self, names: Iterable[str]) -> None:
        self._width = max(map(len, names), default=0)
        self._rest: dict[str, bytes] = {}

    def lines(self, name: str, data: bytes) -> bytes:
        """What can be printed now that `data` came."""
        *whole, rest = (self._rest.pop(name, b"") + data).split(b"\n")
        self._rest[name] = rest
        return b"".join(self._before(name) + line + b"\n" for line in whole)

    def end(self) -> bytes:
        """The lines that were never ended."""
        return b"".join(self._before(name) + rest + b"\n" for name, rest in self._rest.items() if rest)

    def _before(self, name: str) -> bytes:
        return f"{name:<{self._width}} | ".encode()
