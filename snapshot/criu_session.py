"""One conversation with `criu swrk`: one dump or restore, with its callbacks.

The wire is SOCK_SEQPACKET with one protobuf message a datagram (criu/cr-service.c). criu asks
at every stage and waits for as long as we like: that is how a tree is held frozen, or held half
restored, until everybody is ready. Refusing a callback is the clean way to give up; criu is
killed only by :meth:`CriuSession.kill`, which may harm the job.

Facts that shape the use of it: in the host's network namespace criu never calls `network-lock`,
so "all frozen, nothing dumped" is `query-ext-files` (RPC only); `post-dump` can still be refused;
on restore all sockets exist, in repair mode, at `post-restore`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.criu_binary import rpc

_DATAGRAM_BYTES = 1 << 20
_REAP_SECONDS = 10


class CriuFailedError(CwError):
    """criu could not {what}.

    Fix: the lines above are criu's; docs/troubleshooting.md lists the frequent ones, and with
    CW_SNAPSHOT_CRIU_LOG_LEVEL=4 its log tells every step.
    """

    exit_code = ExitCode.ABORTED


class CriuDiedError(CwError):
    """criu ended unexpectedly while it was to {what}.

    Fix: the job may be left with sockets in repair mode, on which it gets EPERM; restore it from
    its last snapshot if it fails.
    """

    exit_code = ExitCode.HARMED


class RestoringCriuDiedError(CriuDiedError):
    """criu ended unexpectedly while it was to {what}; what it had made was removed.

    Fix: restore again; if it happens again, the machine may be short of memory.
    """

    exit_code = ExitCode.ABORTED


class CriuTimeoutError(CwError):
    """criu did not get to `{stage}` within {seconds:.1f} s.

    Fix: criu's log shows where it hangs; `--max-pause` allows more.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class Callback:
    """criu waits at a stage until it is answered."""

    stage: str
    pid: int
    """Pid of the restored root in its own namespace, where criu gives it; else 0."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """criu's last word."""

    success: bool
    errno: int
    message: str


class CriuSession:
    """A running `criu swrk`.

    :param connection: our end of its socket.
    :param what: "dump the job" or so, for messages.
    :param log: criu's log, for messages.
    :param process: the started program, where it is a child of ours.
    :param death: the error that its death is.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        what: str,
        log: Path,
        process: subprocess.Popen[bytes] | None = None,
        death: type[CriuDiedError] = CriuDiedError,
    ) -> None:
        self._process = process
        self._connection = connection
        self._what = what
        self._log = log
        self._rpc = rpc()
        self._death_error = death
        self._ended = False
        self.died = False
        """It ended without a last word, or had to be killed."""

    @property
    def pid(self) -> int:
        """Of the started program, which leads criu's process group."""
        assert self._process is not None
        return self._process.pid

    def fileno(self) -> int:
        """Readable when :meth:`next` would not wait."""
        return self._connection.fileno()

    def request(self, kind: str, options: Any) -> None:
        """Start the work. `kind` is `DUMP` or `RESTORE`, `options` a `criu_opts` message."""
        self._send(self._rpc.criu_req(type=self._rpc.criu_req_type.Value(kind), opts=options))

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message.SerializeToString())
        except OSError as error:
            raise self.death() from error

    def death(self) -> CriuDiedError:
        """The error that its death is; nothing more is said to it."""
        self._ended = self.died = True
        return self._death_error(what=self._what, evidence=criu_errors(self._log))

    def next(self, stage: str, limit: timedelta) -> Callback | Outcome:
        """Wait for the next callback or the outcome; `stage` says what is expected, for the
        message when it does not come in time."""
        self._connection.settimeout(max(limit.total_seconds(), 0.001))
        try:
            datagram = self._connection.recv(_DATAGRAM_BYTES)
        except TimeoutError as error:
            raise CriuTimeoutError(stage=stage, seconds=limit.total_seconds()) from error
        except OSError as error:
            raise self.death() from error
        if not datagram:
            raise self.death()
        answer = self._rpc.criu_resp()
        answer.ParseFromString(datagram)
        if answer.type == self._rpc.NOTIFY:
            return Callback(answer.notify.script, answer.notify.pid)
        self._ended = True
        return Outcome(answer.success, answer.cr_errno, answer.cr_errmsg)

    def answer(self, go_on: bool) -> None:
        """Let criu go on from a callback, or make it give up there."""
        self._send(self._rpc.criu_req(type=self._rpc.NOTIFY, notify_success=go_on))

    def until(self, stage: str, limit: timedelta) -> Callback:
        """Answer callbacks with "go on" until `stage` comes, which is left unanswered.

        :raises CriuFailedError: when criu ends first.
        """
        while True:
            event = self.next(stage, limit)
            if isinstance(event, Outcome):
                raise self.failure(event)
            if event.stage == stage:
                return event
            self.answer(True)

    def finish(self, limit: timedelta) -> None:
        """Answer callbacks with "go on" until the work has succeeded.

        :raises CriuFailedError: when it has not.
        """
        while isinstance(event := self.next("the end", limit), Callback):
            self.answer(True)
        if not event.success:
            raise self.failure(event)

    def give_up(self, limit: timedelta) -> None:
        """Make criu give up at the callback at which it waits, and wait until it has.

        :raises CriuDiedError: it died instead.
        """
        if self._ended:
            return
        self.answer(False)
        while isinstance(self.next("the end", limit), Callback):
            self.answer(False)

    def failure(self, outcome: Outcome) -> CriuFailedError:
        errors = criu_errors(self._log) or [outcome.message or f"errno {outcome.errno}"]
        return CriuFailedError(what=self._what, evidence=errors)

    def close(self) -> None:
        """Hang up and reap. A criu that still works sees the end of the connection and gives up
        by itself, unharmed job included."""
        self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(_REAP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL. In mid-dump it leaves the job's sockets in repair mode: the last resort."""
        if self._process is None:
            return
        self.died = True
        # The group: nsenter forks before it becomes criu.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def start_criu(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    pass_fds: Sequence[int],
    what: str,
    log: Path,
) -> CriuSession:
    """Start a criu whose command line ends in `swrk` and give it its socket.

    The environment is wholly ours: criu reads CRIU_CONFIG_FILE and HOME otherwise.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            env=dict(environment),
            pass_fds=[*pass_fds, theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return CriuSession(ours, what=what, log=log, process=process)


_HARMLESS = ("Can't setup RLIMIT_NOFILE", "Could not process rule", "Dumping FAILED", "Restoring FAILED")
_ERROR_LINES = 8


def criu_errors(log: Path) -> list[str]:
    """The lines of criu's log that say what went wrong, without those that never matter.

    The first error over RPC is often such a one: criu complains of a missing CAP_SYS_RESOURCE
    before it does anything.
    """
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    lines = [line for line in text.splitlines() if "Error (" in line]
    telling = [line for line in lines if not any(harmless in line for harmless in _HARMLESS)]
    return [line.split(") ", 1)[-1] if line.startswith("(") else line for line in telling[:_ERROR_LINES]]
