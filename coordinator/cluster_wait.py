"""Waiting for the end of a job on several nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.cluster import Cluster
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs, trees_of
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.errors import CwError, ExitCode

_POLL = timedelta(seconds=1)
_NAMES = {
    wire.JobFacts.ENDED: "ended",
    wire.JobFacts.LOST: "lost",
    wire.JobFacts.UNKNOWN: "unknown",
    wire.JobFacts.RUNNING: "running",
}


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job of which no tree runs any more."""

    job: ClusterJob
    facts: Mapping[int, wire.JobFacts]

    @property
    def exit_code(self) -> int:
        """The worst status of a tree; 1 when one has none, for it was killed together with its init."""
        if any(one.state != wire.JobFacts.ENDED for one in self.facts.values()):
            return int(ExitCode.INTERNAL)
        return max((one.exit_code for one in self.facts.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        trees = [
            {
                "tree": tree,
                "node": self.job.nodes[tree],
                "state": _NAMES[one.state],
                "exit_code": one.exit_code,
                "signal": one.signal,
            }
            for tree, one in sorted(self.facts.items())
        ]
        return {
            "id": self.job.id,
            "incarnation": self.job.incarnation,
            "exit_code": self.exit_code,
            "trees": trees,
        }


def wait(
    state_dir: Path, job: ClusterJob, cluster: Cluster, tell: Callable[[str], None], poll: timedelta = _POLL
) -> EndedJob:
    """Wait until no tree of a job runs, also of an incarnation that begins meanwhile.

    A node that does not answer may run it: it is waited for.

    :param tell: what the user should know, once for each node that does not answer.
    """
    silent: set[str] = set()
    while True:
        job = ClusterJobs(state_dir).find(job.id) or job
        facts: dict[int, wire.JobFacts] = {}
        for tree, answer in trees_of(job, cluster).items():
            if not isinstance(answer, CwError):
                facts[tree] = answer
                silent.discard(job.nodes[tree])
            elif job.nodes[tree] not in silent:
                silent.add(job.nodes[tree])
                tell(f"{answer.message}; waiting for it")
        if len(facts) == len(job.nodes) and all(one.state != wire.JobFacts.RUNNING for one in facts.values()):
            return EndedJob(job, facts)
        time.sleep(poll.total_seconds())
