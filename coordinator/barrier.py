"""The barrier: when the nodes of a job may take the next step together. Pure.

Two machines that only exchange messages: one :class:`Barrier` in the coordinator, one
:class:`Member` on each node. Whoever drives them carries the messages, does what a member is told to
do, and tells both about time. Messages may be lost, late, doubled or reordered, and every party may die.

    take      OPEN   STOP      SKELETON  SHADOW  | GO  PAGES
    restore   PLAN   FETCH     SKELETON  PAGES   | GO  COMPLETE

The next phase is told when every node has said yes to the last one. Any "no", a node that is lost, or
a deadline ends the operation: everybody is told ABORT.

Invariants, which `tests/coordinator/test_barrier.py` tries to break:

1. A take is committed only if the tree of every node stood still, without a gap, from before the first
   SHADOW until every node had made its shadows. What one rank sent after that is in nobody's snapshot.
2. A tree that was stopped runs again: by GO, by ABORT, or by the deadline of its own node.
3. A node that has let its tree go by itself says no to everything in that epoch, for ever.
4. A restored tree that was not told COMPLETE in time is ended by its own node: the coordinator may have
   ended all others. Those that were told it stay; when COMPLETE does not reach all, the coordinator ends
   them one by one, which is outside of this machine.
5. Nothing of an older epoch changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What all nodes do together."""

    OPEN = "open"
    STOP = "stop"
    SKELETON = "skeleton"
    SHADOW = "shadow"
    GO = "go"
    PAGES = "pages"
    PLAN = "plan"
    FETCH = "fetch"
    COMPLETE = "complete"
    ABORT = "abort"
    """Not a step: the end, at any time."""


TAKE = (Phase.OPEN, Phase.STOP, Phase.SKELETON, Phase.SHADOW, Phase.GO, Phase.PAGES)
RESTORE = (Phase.PLAN, Phase.FETCH, Phase.SKELETON, Phase.PAGES, Phase.GO, Phase.COMPLETE)
PLAN_ONLY = (Phase.PLAN,)
"""What a restore would do; nothing is changed."""


class Outcome(StrEnum):
    """How an operation ended for the coordinator."""

    DONE = "done"
    """Every node said yes to everything: a take may be committed, a restored job runs."""
    ABORTED = "aborted"
    """Before anybody was told to go."""
    LOST = "lost"
    """After that: a take's job runs and its snapshot is lost; a restore's trees are ended."""


@dataclass(frozen=True, slots=True)
class Command:
    """From the coordinator to a node."""

    epoch: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Vote:
    """From a node to the coordinator: whether it has done a phase."""

    epoch: int
    node: str
    phase: Phase
    yes: bool
    why: str = ""
    """Of a no."""


class Barrier:
    """The coordinator's side of one operation.

    Every method returns the phase that is to be told to all nodes now, or None.
    """

    def __init__(self, epoch: int, nodes: Iterable[str], phases: Sequence[Phase]) -> None:
        self.epoch = epoch
        self.nodes = frozenset(nodes)
        self.outcome: Outcome | None = None
        self.why: list[str] = []
        """What ended it, node by node."""
        self._phases = tuple(phases)
        self._at = 0
        self._yes: set[str] = set()

    @property
    def phase(self) -> Phase:
        """The phase that is under way, or that was when the operation ended."""
        return self._phases[self._at]

    @property
    def waiting_for(self) -> frozenset[str]:
        """Nodes that have not voted in this phase."""
        return frozenset() if self.outcome else self.nodes - self._yes

    def begin(self) -> Phase:
        return self.phase

    def vote(self, vote: Vote) -> Phase | None:
        """A vote arrives. Those of other epochs and of phases that are over count nothing; a no counts
        whenever it comes, for a node that is out is out."""
        if self.outcome or vote.epoch != self.epoch or vote.node not in self.nodes:
            return None
        if not vote.yes:
            return self.fail(f"{vote.node}: {vote.why}")
        if vote.phase is not self.phase:
            return None
        self._yes.add(vote.node)
        if self._yes != self.nodes:
            return None
        if self._at + 1 == len(self._phases):
            self.outcome = Outcome.DONE
            return None
        self._at += 1
        self._yes.clear()
        return self.phase

    def fail(self, why: str) -> Phase | None:
        """A node is lost, a deadline has passed, or the user wants no more."""
        if self.outcome:
            return None
        self.why.append(why)
        gone = Phase.GO in self._phases[: self._at + 1]
        self.outcome = Outcome.LOST if gone else Outcome.ABORTED
        return Phase.ABORT


@dataclass(frozen=True, slots=True)
class Do:
    """The node is to do a phase, and to call :meth:`Member.done` then. ABORT: undo everything."""

    phase: Phase


Reaction = Do | Vote


class Member:
    """A node's side of one operation.

    Every method returns what is to be done now: at most one phase, or a vote to be sent.
    """

    def __init__(self, epoch: int, node: str, phases: Sequence[Phase]) -> None:
        self.epoch = epoch
        self.node = node
        self.over = False
        """No command changes anything any more."""
        self._phases = tuple(phases)
        self.why = ""
        """Why it ended before all was done; empty when it did not."""
        self._next = 0
        self._busy = False

    @property
    def done_phases(self) -> tuple[Phase, ...]:
        """Phases that were done with success."""
        return self._phases[: self._next]

    def command(self, command: Command) -> Reaction | None:
        """A command arrives. Those that were done already are answered again, those of another epoch
        are refused, those that come too early are dropped: the coordinator never sends one before
        the last was answered."""
        if command.epoch != self.epoch:
            return Vote(command.epoch, self.node, command.phase, False, f"the epoch here is {self.epoch}")
        if command.phase is Phase.ABORT:
            return self._end("the coordinator gave up")
        if self.over and self.why:
            return Vote(self.epoch, self.node, command.phase, False, self.why)
        if command.phase in self.done_phases:
            return Vote(self.epoch, self.node, command.phase, True)
        if self.over or self._busy or command.phase is not self._phases[self._next]:
            return None
        self._busy = True
        return Do(command.phase)

    def done(self, phase: Phase, why_not: str = "") -> Sequence[Reaction]:
        """A phase was done, or was not.

        :param why_not: empty when it was done.
        """
        self._busy = False
        if self.over:  # given up while it was being done: that is undone now
            return (Do(Phase.ABORT), Vote(self.epoch, self.node, phase, False, self.why))
        if why_not:
            reaction = self._end(why_not)
            vote = Vote(self.epoch, self.node, phase, False, why_not)
            return (reaction, vote) if reaction else (vote,)
        self._next += 1
        self.over = self._next == len(self._phases)
        return (Vote(self.epoch, self.node, phase, True),)

    def alone(self, why: str) -> Reaction | None:
        """The deadline of this node has passed, or the coordinator can't be reached any more."""
        return self._end(why)

    def _end(self, why: str) -> Do | None:
        if self.over:
            return None
        self.over, self.why = True, why
        return None if self._busy else Do(Phase.ABORT)
