"""Leading one operation over all nodes through its phases."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cw_snapshot.coordinator.barrier import Barrier, Outcome, Phase, Vote
from cw_snapshot.coordinator.node_links import Arrived, Ended, NodeLinks
from cw_snapshot.coordinator.signals import InterruptedBySignalError
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import remote_errors
from cw_snapshot.errors import CwError

OnProgress = Callable[[str, str, int, int], None]
"""Node, phase, bytes done, bytes in all."""


@dataclass(slots=True)
class Conducted:
    """What came of it."""

    facts: dict[Phase, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """What each node told of each phase."""
    errors: dict[str, CwError] = field(default_factory=dict)
    """What went wrong on each node, the worst of it."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds from the beginning until every node had done a phase."""


class Conductor:
    """Tells the phases of a barrier to the nodes, and the votes of the nodes to the barrier."""

    def __init__(
        self,
        barrier: Barrier,
        links: NodeLinks,
        limits: Mapping[Phase, timedelta],
        progress: OnProgress,
    ) -> None:
        self._barrier = barrier
        self._links = links
        self._limits = limits
        self._progress = progress
        self._open = set(barrier.nodes)
        self._unsure: set[str] = set()
        self.result = Conducted()

    def run(self, before: Callable[[Phase], None] = lambda _: None) -> Conducted:
        """Until every node has said yes to everything, or the operation has ended.

        A signal (:mod:`signals`) is one of the ways in which it may end.

        :param before: called with each phase before it is told; what it raises ends the operation.
        """
        try:
            self._run(before)
        except InterruptedBySignalError as error:
            self._give_up(f"the command was {error.message[:1].lower()}{error.message[1:].rstrip('.')}")
        except BaseException:
            self._give_up("the coordinator gave up")
            raise
        return self.result

    def _give_up(self, why: str) -> None:
        if (told := self._barrier.fail(why)) is not None:
            self._links.tell(told)

    def _run(self, before: Callable[[Phase], None]) -> None:
        begun = time.monotonic()
        phase: Phase | None = self._barrier.begin()
        while phase is not None:
            if phase is Phase.ABORT:
                self._links.tell(phase)
                break
            before(phase)
            self._links.tell(phase)
            following = self._await(phase)
            self.result.times[phase.value] = round(time.monotonic() - begun, 6)
            phase = following

    def _await(self, phase: Phase) -> Phase | None:
        """The votes of one phase; returns what is to be told next."""
        limit = self._limits[phase]
        deadline = time.monotonic() + limit.total_seconds()
        while True:
            left = deadline - time.monotonic()
            try:
                arrived = self._links.inbox.get(timeout=max(0.0, left))
            except queue.Empty:
                late = ", ".join(sorted(self._barrier.waiting_for))
                return self._barrier.fail(
                    f"no answer to {phase} from {late} within {limit.total_seconds():g} s"
                )
            told = self._handle(arrived)
            if told is not None or self._barrier.outcome:
                return told

    def _handle(self, arrived: Arrived) -> Phase | None:
        node, what = arrived.node, arrived.what
        if isinstance(what, wire.Progress):
            self._progress(node, what.phase, what.done_bytes, what.total_bytes)
            return None
        if isinstance(what, Ended):
            self._open.discard(node)
            if what.error is not None:
                self._unsure.add(node)
                self._blame(node, what.error)
            why = _plain(what.error) if what.error else "its worker ended"
            return self._barrier.fail(f"{node}: {why}")
        phase = Phase(what.phase)
        if what.yes:
            self.result.facts.setdefault(phase, {})[node] = json.loads(what.json)
            return self._barrier.vote(Vote(what.epoch, node, phase, True))
        error = remote_errors.from_text(what.json, node)
        self._blame(node, error)
        return self._barrier.vote(Vote(what.epoch, node, phase, False, _plain(error)))

    def _blame(self, node: str, error: CwError) -> None:
        known = self.result.errors.get(node)
        if known is None or error.exit_code > known.exit_code:
            self.result.errors[node] = error

    def settle(self, limit: timedelta) -> frozenset[str]:
        """Wait until every node has ended its part. Returns those that have not, or not in good order:
        how things stand there is not known."""
        done = self._barrier.outcome is Outcome.DONE
        self._links.close()
        deadline = time.monotonic() + limit.total_seconds()
        while self._open:
            try:
                arrived = self._links.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(arrived.what, Ended):
                self._open.discard(arrived.node)
                # One that never heard of the operation's end: the stream broke.
                if arrived.what.error is not None:
                    self._unsure.add(arrived.node)
                    self._blame(arrived.node, arrived.what.error)
            elif isinstance(arrived.what, wire.Vote) and not arrived.what.yes:
                if done:
                    self._unsure.add(arrived.node)
                self._blame(arrived.node, remote_errors.from_text(arrived.what.json, arrived.node))
        return frozenset(self._open | self._unsure)


def _plain(error: CwError) -> str:
    """The message without the node's name, which the barrier puts before it."""
    return error.plain if isinstance(error, remote_errors.RemoteError) else error.message
