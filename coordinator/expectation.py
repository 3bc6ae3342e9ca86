"""What is expected of a take: the job's facts, this machine's pace and what earlier takes tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cw_snapshot.coordinator import deadlines, machine
from cw_snapshot.coordinator.history import past_takes, rates
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.take_report import Collapsing
from cw_snapshot.snapshot import cgroups, collapse, job_facts
from cw_snapshot.snapshot.collapse import Candidate
from cw_snapshot.snapshot.predict import JobFacts, Prediction, Rates, predict
from cw_snapshot.snapshot.tree import Tree

_HEADROOM_PARTS = 4
"""A collapse may use one part in so many of the memory that is left: the shadows need it too."""


def repository_name(settings: Settings) -> str | None:
    """The repository as records name it: without the options of its address."""
    return settings.repository.partition("?")[0] if settings.repository else None


class Expectation:
    """Predicts takes of one job; pace and history are looked up once."""

    def __init__(self, job: str, settings: Settings) -> None:
        self._pace = machine.pace(settings.state_dir)
        self._rates: Rates = rates(
            list(past_takes(settings.state_dir)), job, repository_name(settings), settings.threads
        )

    def of(self, tree: Tree, spent_seconds: float = 0.0) -> Prediction:
        """What a take of the tree as it is now would cost.

        :param spent_seconds: of the take, already.
        """
        return predict(job_facts.read(tree), self._pace, self._rates, spent_seconds)

    def after_collapse(self, now: Prediction, candidates: list[Candidate]) -> Prediction:
        """What a take would cost if all these were huge pages."""
        return predict(collapsed(now.facts, candidates), self._pace, self._rates)

    def planned_collapse(self, tree: Tree, now: Prediction) -> Collapsing:
        """What `--collapse` would bring at the most: the job may forbid huge pages."""
        candidates = collapse.find(tree)
        return Collapsing(
            collapse.planned(candidates),
            now.pause_seconds,
            self.after_collapse(now, candidates).pause_seconds,
        )

    def collapse(self, tree: Tree, before: Prediction) -> Collapsing:
        """Make huge pages of the running job's small ones; what that brought is predicted anew."""
        candidates = collapse.find(tree)
        left = min(group.headroom for group in cgroups.memory_of(m.pid for m in tree.living))
        done = collapse.collapse(
            candidates,
            headroom=left // _HEADROOM_PARTS,
            limit=deadlines.collapse_limit(len(candidates) * job_facts.HUGE_BYTES),
        )
        # As busy as before: what is told is what the huge pages have brought.
        after = replace(job_facts.read(tree), busy=before.facts.busy)
        return Collapsing(done, before.pause_seconds, predict(after, self._pace, self._rates).pause_seconds)


def collapsed(facts: JobFacts, candidates: list[Candidate]) -> JobFacts:
    """The facts of a job in which these ranges are huge pages."""
    ranges = Counter(c.pid for c in candidates)
    pages: Counter[int] = Counter()
    for candidate in candidates:
        pages[candidate.pid] += candidate.pages
    forks = tuple(fork.collapsed(ranges[fork.pid], pages[fork.pid]) for fork in facts.forks)
    growth = sum(c.growth_bytes for c in candidates)
    return replace(facts, forks=forks, private_bytes=facts.private_bytes + growth)
