"""The barrier against lost, late, doubled and reordered messages, and dying parties."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cw_snapshot.coordinator.barrier import (
    RESTORE,
    TAKE,
    Barrier,
    Command,
    Do,
    Member,
    Outcome,
    Phase,
    Reaction,
    Vote,
)


@dataclass
class Tree:
    """What a node does to its tree, and when."""

    stopped: bool = False
    exists: bool = True
    shadowed_at: int | None = None
    stopped_at: int | None = None
    released_at: int | None = None
    completed: bool = False

    def run(self, now: int) -> None:
        if self.stopped:
            self.stopped = False
            self.released_at = now


class Cluster(RuleBasedStateMachine):
    """A coordinator, nodes, and a network that does everything wrong."""

    phases = TAKE

    @initialize(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        self.now = 0
        self.barrier = Barrier(7, [f"n{i}" for i in range(count)], self.phases)
        self.members = {name: Member(7, name, self.phases) for name in sorted(self.barrier.nodes)}
        self.trees = {name: Tree(exists=self.phases is TAKE) for name in self.members}
        self.doing: dict[str, Phase] = {}
        self.dead: set[str] = set()
        self.coordinator_dead = False
        self.wire: list[tuple[str, Command | Vote]] = []
        self.tell(self.barrier.begin())

    # -- what drivers do ----------------------------------------------------------------

    def tell(self, phase: Phase | None) -> None:
        if phase is not None and not self.coordinator_dead:
            self.wire += [(name, Command(self.barrier.epoch, phase)) for name in self.members]

    def react(self, name: str, reaction: Reaction | None) -> None:
        if isinstance(reaction, Vote):
            self.wire.append(("coordinator", reaction))
        elif reaction is not None:
            assert name not in self.doing, "told to do two things at once"
            if reaction.phase is Phase.ABORT:
                self.undo(name)
            else:
                self.doing[name] = reaction.phase

    def undo(self, name: str) -> None:
        tree = self.trees[name]
        if self.phases is RESTORE:
            tree.exists = tree.completed
        tree.run(self.now)

    def effect(self, name: str, phase: Phase) -> None:
        tree = self.trees[name]
        if phase is Phase.STOP:
            tree.stopped, tree.stopped_at = True, self.now
        elif phase is Phase.SHADOW:
            assert tree.stopped, "a shadow of a running tree"
            tree.shadowed_at = self.now
        elif phase is Phase.SKELETON and self.phases is RESTORE:
            tree.exists = tree.stopped = True
        elif phase is Phase.GO:
            tree.run(self.now)
        elif phase is Phase.COMPLETE:
            tree.completed = True

    # -- what may happen ----------------------------------------------------------------

    @rule(steps=st.integers(1, 40))
    def all_goes_well_for_a_while(self, steps: int) -> None:
        """Else nothing would get as far as GO among all these troubles."""
        for _ in range(steps):
            if self.doing:
                self.finish_one(next(iter(self.doing)), fails=False)
            elif self.wire:
                self.deliver_one(0, doubled=False)

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), doubled=st.booleans())
    def deliver(self, data: st.DataObject, doubled: bool) -> None:
        self.deliver_one(data.draw(st.integers(0, len(self.wire) - 1)), doubled=doubled)

    def deliver_one(self, which: int, *, doubled: bool) -> None:
        self.now += 1
        to, message = self.wire.pop(which)
        if doubled:
            self.wire.append((to, message))
        if to == "coordinator":
            if not self.coordinator_dead:
                assert isinstance(message, Vote)
                self.tell(self.barrier.vote(message))
        elif to not in self.dead:
            assert isinstance(message, Command)
            self.react(to, self.members[to].command(message))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1)))

    @precondition(lambda self: self.doing)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def finish(self, data: st.DataObject, fails: bool) -> None:
        self.finish_one(data.draw(st.sampled_from(sorted(self.doing))), fails=fails)

    def finish_one(self, name: str, *, fails: bool) -> None:
        self.now += 1
        phase = self.doing.pop(name)
        if not fails:
            self.effect(name, phase)
        for reaction in self.members[name].done(phase, "it failed" if fails else ""):
            self.react(name, reaction)

    @rule(data=st.data())
    def deadline_of_a_node(self, data: st.DataObject) -> None:
        self.now += 1
        name = data.draw(st.sampled_from(sorted(self.members)))
        if name not in self.dead:
            self.react(name, self.members[name].alone("nothing was heard in time"))

    @rule(data=st.data())
    def node_dies(self, data: st.DataObject) -> None:
        """Its guard lets the job go on, or ends the half-made tree."""
        self.now += 1
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.dead.add(name)
        self.doing.pop(name, None)
        self.undo(name)

    @rule()
    def deadline_of_the_coordinator(self) -> None:
        if not self.coordinator_dead:
            self.tell(self.barrier.fail("no answer in time"))

    @rule()
    def coordinator_dies(self) -> None:
        self.coordinator_dead = True

    @rule(phase=st.sampled_from(Phase), node=st.integers(0, 3), yes=st.booleans())
    def a_message_of_an_older_operation(self, phase: Phase, node: int, yes: bool) -> None:
        before = self.barrier.phase, self.barrier.outcome, self.barrier.waiting_for
        assert self.barrier.vote(Vote(6, f"n{node}", phase, yes, "old")) is None
        assert (self.barrier.phase, self.barrier.outcome, self.barrier.waiting_for) == before
        if member := self.members.get(f"n{node}"):
            reaction = member.command(Command(6, phase))
            assert reaction == Vote(6, member.node, phase, False, "the epoch here is 7")

    # -- what must hold -----------------------------------------------------------------

    @invariant()
    def no_snapshot_of_two_instants(self) -> None:
        if self.phases is not TAKE or self.barrier.outcome is not Outcome.DONE:
            return
        shadows = [tree.shadowed_at for tree in self.trees.values()]
        for tree in self.trees.values():
            assert None not in (tree.stopped_at, tree.released_at, *shadows)
            assert all(tree.stopped_at < at < tree.released_at for at in shadows)  # type: ignore[operator]

    @invariant()
    def go_after_every_shadow_only(self) -> None:
        told_go = any(isinstance(m, Command) and m.phase is Phase.GO for _, m in self.wire)
        if self.phases is TAKE and told_go:
            assert all(tree.shadowed_at is not None for tree in self.trees.values())

    @invariant()
    def done_means_all(self) -> None:
        if self.barrier.outcome is Outcome.DONE and self.phases is RESTORE:
            assert all(tree.completed for tree in self.trees.values())

    def teardown(self) -> None:
        """Whatever has happened: when all time has passed, nothing stands still and nothing is half."""
        if not hasattr(self, "members"):
            return
        for name, member in self.members.items():
            if name in self.dead:
                continue
            self.react(name, member.alone("time is over"))
            if (phase := self.doing.pop(name, None)) is not None:
                self.effect(name, phase)
                for reaction in member.done(phase):
                    self.react(name, reaction)
            later = member.command(Command(7, Phase.GO))
            assert not isinstance(later, Do)
            if member.done_phases[-1:] != self.phases[-1:]:
                assert later == Vote(7, name, Phase.GO, False, member.why)
        assert not any(tree.stopped for tree in self.trees.values())
        if self.phases is RESTORE:
            assert all(tree.completed for tree in self.trees.values() if tree.exists)


class RestoringCluster(Cluster):
    phases = RESTORE


TestTake = Cluster.TestCase
TestRestore = RestoringCluster.TestCase
TestTake.settings = TestRestore.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def run_all(barrier: Barrier, members: dict[str, Member], phase: Phase | None) -> None:
    """Deliver everything at once until nothing is told any more."""
    while phase is not None:
        told: Phase | None = None
        for member in members.values():
            reaction = member.command(Command(barrier.epoch, phase))
            if isinstance(reaction, Do) and reaction.phase is not Phase.ABORT:
                votes = [v for v in member.done(reaction.phase) if isinstance(v, Vote)]
                told = next(barrier.vote(vote) for vote in votes) or told
            elif isinstance(reaction, Vote):
                told = barrier.vote(reaction) or told
        phase = told


def test_without_trouble_it_is_done() -> None:
    for phases in (TAKE, RESTORE):
        members = {name: Member(1, name, phases) for name in ("a", "b", "c")}
        barrier = Barrier(1, members, phases)
        run_all(barrier, members, barrier.begin())
        assert barrier.outcome is Outcome.DONE
        assert all(member.done_phases == phases for member in members.values())


def test_a_node_that_went_by_itself_at_the_very_moment_of_go() -> None:
    """GO is on the wire to both when the deadline of one passes: no commit."""
    members = {name: Member(1, name, TAKE) for name in ("a", "b")}
    barrier = Barrier(1, members, TAKE)
    phase: Phase | None = barrier.begin()
    while phase is not Phase.GO:
        assert phase is not None
        told = None
        for member in members.values():
            member.command(Command(1, phase))
            (vote,) = member.done(phase)
            assert isinstance(vote, Vote)
            told = barrier.vote(vote)
        phase = told
    assert members["a"].alone("its deadline passed") == Do(Phase.ABORT)
    no = members["a"].command(Command(1, Phase.GO))
    assert no == Vote(1, "a", Phase.GO, False, "its deadline passed")
    assert members["b"].command(Command(1, Phase.GO)) == Do(Phase.GO)
    assert barrier.vote(no) is Phase.ABORT
    (yes,) = members["b"].done(Phase.GO)
    assert isinstance(yes, Vote)
    assert barrier.vote(yes) is None
    assert barrier.outcome is Outcome.LOST
    assert barrier.why == ["a: its deadline passed"]


def test_given_up_in_the_middle_of_a_phase() -> None:
    """What is being done is finished, then undone; the vote is a no."""
    member = Member(1, "a", TAKE)
    assert member.command(Command(1, Phase.OPEN)) == Do(Phase.OPEN)
    assert member.command(Command(1, Phase.ABORT)) is None
    undo, vote = member.done(Phase.OPEN)
    assert undo == Do(Phase.ABORT)
    assert isinstance(vote, Vote)
    assert not vote.yes


def test_a_doubled_vote_is_no_vote_for_the_next_phase() -> None:
    barrier = Barrier(1, ["a", "b"], TAKE)
    for name in ("a", "b"):
        told = barrier.vote(Vote(1, name, Phase.OPEN, True))
    assert told is Phase.STOP
    assert barrier.vote(Vote(1, "a", Phase.OPEN, True)) is None
    assert barrier.waiting_for == {"a", "b"}


def test_how_it_ended_depends_on_whether_go_was_told() -> None:
    for phases in (TAKE, RESTORE):
        for until in range(len(phases)):
            barrier = Barrier(1, ["a"], phases)
            for phase in phases[:until]:
                barrier.vote(Vote(1, "a", phase, True))
            assert barrier.phase is phases[until]
            assert barrier.fail("lost") is Phase.ABORT
            went = until >= phases.index(Phase.GO)
            assert barrier.outcome is (Outcome.LOST if went else Outcome.ABORTED)
            assert barrier.fail("again") is None
            assert barrier.why == ["lost"]
