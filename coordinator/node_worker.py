"""The process that does one operation on one node, for an agent.

Each operation has a process of its own: what blocks or crashes in it harms no other, and it is the
principal whose death the guard waits for. It speaks with its agent over a socket; when that ends before
the operation does, nobody can be asked any more, and the tree is let go.

    python -I -m cw_snapshot.coordinator.node_worker FD NODE
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from cw_snapshot.coordinator.barrier import PLAN_ONLY, RESTORE, TAKE, Command, Member, Phase, Reaction, Vote
from cw_snapshot.coordinator.jobs import tree_store
from cw_snapshot.coordinator.limits import raise_descriptor_limit, refuse_low_limits
from cw_snapshot.coordinator.node_restore import RestoreWork
from cw_snapshot.coordinator.node_take import TakeWork
from cw_snapshot.coordinator.operations import Operation, operation
from cw_snapshot.coordinator.settings import Settings, load_settings
from cw_snapshot.coordinator.signals import ignore_signals
from cw_snapshot.coordinator.state import exclusive
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import remote_errors
from cw_snapshot.coordinator.wire.frames import Frames
from cw_snapshot.coordinator.wire_broker import WireBroker
from cw_snapshot.errors import CwError

_UNREACHABLE = "the coordinator can't be reached any more"

Incoming = Command | wire.Finish | None
"""None: the agent is gone."""


class Work(Protocol):
    """One node's part of an operation."""

    stopped_since: float | None
    """CLOCK_MONOTONIC at which the tree was stopped; None while it runs."""

    def do(self, phase: Phase) -> dict[str, Any]: ...
    def finish(self, *, durable: bool) -> None: ...
    def undo(self, error: BaseException | None = None) -> None: ...


class Worker:
    """Carries messages between the agent and a :class:`Member`, and does what the member says."""

    def __init__(self, frames: Frames, member: Member, pause_limit: float) -> None:
        self._frames = frames
        self._member = member
        self._pause_limit = pause_limit
        self._inbox: queue.Queue[Incoming] = queue.Queue()
        self._error: BaseException | None = None
        self._no_more = ""
        """Why a phase that takes long is to end: that the phase after it will not come."""
        self.broker = WireBroker(self.send)

    @property
    def node(self) -> str:
        return self._member.node

    def send(self, message: wire.FromNode) -> None:
        self._frames.send(message)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Tell how far a phase is.

        :raises NodeGaveUpError: nobody wants its end any more.
        """
        if self._no_more:
            raise NodeGaveUpError(why=self._no_more)
        told = wire.Progress(phase=phase, done_bytes=done, total_bytes=total)
        try:
            self.send(wire.FromNode(progress=told))
        except OSError:
            return  # the reader of this socket learns it too

    def listen(self) -> None:
        """Sort what arrives; runs in a thread of its own, for claims are answered during a phase."""
        while (message := self._frames.receive(wire.ToNode())) is not None:
            kind = message.WhichOneof("body")
            if kind == "claims":
                self.broker.answered(message.claims)
            elif kind == "command":
                try:
                    phase = Phase(message.command.phase)
                except ValueError:
                    phase = Phase.ABORT
                if phase is Phase.ABORT and message.command.epoch == self._member.epoch:
                    self._give_up("the coordinator gave up")
                self._inbox.put(Command(message.command.epoch, phase))
            elif kind == "finish":
                self._inbox.put(message.finish)
        self._give_up(_UNREACHABLE)
        self._inbox.put(None)

    def _give_up(self, why: str) -> None:
        self._no_more = self._no_more or why
        self.broker.gone()

    def run(self, work: Work) -> None:
        """Until the operation is over."""
        threading.Thread(target=self.listen, name="agent", daemon=True).start()
        while True:
            try:
                message = self._inbox.get(timeout=self._left(work))
            except queue.Empty:
                why = f"no GO came within {self._pause_limit:g} s: the job goes on by itself"
                self._react(work, self._member.alone(why))
                continue
            if isinstance(message, Command):
                self._react(work, self._member.command(message))
            elif message is None:
                if not self._member.over:
                    self._react(work, self._member.alone(_UNREACHABLE))
                elif not self._member.why:
                    work.finish(durable=False)
                return
            else:
                if self._member.over and not self._member.why:
                    work.finish(durable=message.durable)
                return

    def refuse(self, phase: Phase, error: BaseException) -> None:
        """The operation can't even begin, or ended in an error that no phase was to blame for."""
        self._error = error
        self._vote(Vote(self._member.epoch, self._member.node, phase, False), {})

    def _left(self, work: Work) -> float | None:
        if work.stopped_since is None:
            return None
        return max(0.0, work.stopped_since + self._pause_limit - time.monotonic())

    def _react(self, work: Work, *reactions: Reaction | None) -> None:
        told: dict[str, Any] = {}
        pending = list(reactions)
        while pending:
            reaction = pending.pop(0)
            if isinstance(reaction, Vote):
                self._vote(reaction, told)
            elif reaction is not None and reaction.phase is Phase.ABORT:
                try:
                    work.undo(self._error)
                except Exception as worse:
                    self._error = worse
            elif reaction is not None:
                why_not = ""
                try:
                    told = work.do(reaction.phase)
                except Exception as error:
                    self._error = error
                    why_not = error.message if isinstance(error, CwError) else repr(error)
                pending = [*self._member.done(reaction.phase, why_not), *pending]

    def _vote(self, vote: Vote, told: dict[str, Any]) -> None:
        if vote.yes:
            text = json.dumps(told)
        elif self._error is not None:
            text = remote_errors.to_text(self._error)
        else:
            text = remote_errors.to_text(NodeGaveUpError(why=vote.why))
        message = wire.Vote(epoch=vote.epoch, phase=vote.phase.value, yes=vote.yes, json=text)
        try:
            self.send(wire.FromNode(vote=message))
        except OSError:
            return  # as in progress()


class NodeGaveUpError(CwError):
    """This node is out of the operation: {why}

    Fix: see what the other nodes tell, then begin again.
    """


def work_of(begin: wire.Begin, worker: Worker, settings: Settings, op: Operation) -> Work:
    """What `begin` asks for."""
    store = tree_store(settings.state_dir, begin.tree)
    # Nodes of a lab share /dev/shm.
    name = f"{op.id}.{worker.node}.{begin.tree}"
    if begin.WhichOneof("kind") == "restore":
        return RestoreWork(
            begin, store, operation=name, folder=op.folder, settings=settings, progress=worker.progress
        )
    if begin.take.root:
        root, record = begin.take.root, None
    else:
        record = store.running(begin.job)
        root = record.root_pid
    return TakeWork(
        begin.job,
        root,
        record,
        operation=name,
        folder=op.folder,
        repository=begin.repository,
        settings=settings,
        broker=worker.broker,
        progress=worker.progress,
        stop=begin.take.stop,
        force=begin.take.force,
    )


def alone_on(begin: wire.Begin, settings: Settings) -> AbstractContextManager[None]:
    """Hold a tree for one operation. The coordinator's lock does not suffice: it may have died, and this node
    still undo what it began.

    :raises BusyError: another operation on the tree is not over yet.
    """
    if begin.restore.plan_only:
        return nullcontext()
    return exclusive(tree_store(settings.state_dir, begin.tree).lock_path(begin.job), begin.job)


def main(arguments: Sequence[str]) -> int:
    """The program. Exit status 0 also for an operation that failed: its vote has told why."""
    frames = Frames(socket.socket(fileno=int(arguments[0])))
    raise_descriptor_limit()
    ignore_signals()  # it ends when its agent does, in good order
    first = frames.receive(wire.ToNode())
    if first is None or first.WhichOneof("body") != "begin":
        return 2
    begin = first.begin
    kind = begin.WhichOneof("kind")
    phases: tuple[Phase, ...] = {"take": TAKE, "restore": RESTORE}[kind]
    if begin.restore.plan_only:
        phases = PLAN_ONLY
    worker = Worker(frames, Member(begin.epoch, arguments[1], phases), begin.pause_limit_seconds)
    try:
        settings = load_settings(os.environ, {})
        refuse_low_limits()
        name = f"{begin.operation}.{begin.tree}"
        part = {"part_of": begin.operation, "tree": begin.tree}
        with (
            alone_on(begin, settings),
            operation(settings, kind, begin.job, part, nodes=[worker.node], name=name) as op,
        ):
            worker.run(work_of(begin, worker, settings, op))
    except Exception as error:
        worker.refuse(phases[0], error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
