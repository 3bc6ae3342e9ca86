"""`cw-snapshot ps`: list jobs."""

from __future__ import annotations

from dataclasses import asdict

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.cli.tables import cut, print_table
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs, trees_of
from cw_snapshot.coordinator.jobs import JobState, JobView, to_json
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.errors import CwError
from cw_snapshot.snapshot import tree
from cw_snapshot.snapshot.procfs import ProcessGoneError

_LONGEST_COMMAND = 200


def _processes(view: JobView) -> str:
    if view.state is not JobState.RUNNING:
        return "-"
    try:
        return str(len(tree.find(view.record.root_pid).members))
    except (ProcessGoneError, tree.TreeGoneError):
        return "-"


def _state(context: Context, job: ClusterJob) -> str:
    """Of all its trees: running when all do, partial when only some; unknown where a node does not tell."""
    try:
        answers = trees_of(job, context.cluster()).values()
    except CwError:
        return "unknown"
    facts = [answer for answer in answers if not isinstance(answer, CwError)]
    running = sum(one.state == wire.JobFacts.RUNNING for one in facts)
    if running == len(job.nodes):
        return "running"
    if len(facts) < len(job.nodes):
        return "unknown"
    if running:
        return "partial"
    return "ended" if all(one.state == wire.JobFacts.ENDED for one in facts) else "lost"


def _cluster_rows(jobs: list[ClusterJob], states: dict[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            job.id,
            states[job.id],
            str(job.incarnation),
            ",".join(job.nodes),
            "-",
            job.started,
            cut(" ".join(" ".join(job.command).split()), _LONGEST_COMMAND),
        )
        for job in jobs
    ]


@command("ps")
@settings_options()
@click.option("--all", "-a", "everything", is_flag=True, help="Also jobs that have ended.")
def ps_command(context: Context, everything: bool) -> None:
    """List the jobs of this node, and those that were started on nodes of a cluster."""
    views = [v for v in context.store().all() if everything or v.state is JobState.RUNNING]

    states = {job.id: _state(context, job) for job in ClusterJobs(context.settings.state_dir).all()}
    cluster_jobs = [
        job
        for job in ClusterJobs(context.settings.state_dir).all()
        if everything or states[job.id] not in ("ended", "lost")
    ]

    def text() -> None:
        rows: list[tuple[str, ...]] = [
            (
                v.record.id,
                v.describe(),
                str(v.record.incarnation),
                str(v.record.init) if v.state is JobState.RUNNING else "-",
                _processes(v),
                v.record.started,
                cut(" ".join(" ".join(v.record.command).split()), _LONGEST_COMMAND),
            )
            for v in views
        ]
        rows += _cluster_rows(cluster_jobs, states)
        print_table(("JOB", "STATE", "INCARNATION", "PID OR NODES", "PROCESSES", "STARTED", "COMMAND"), rows)

    context.emit(
        "ps",
        {
            "jobs": [to_json(v) for v in views],
            "cluster_jobs": [{**asdict(job), "state": states[job.id]} for job in cluster_jobs],
        },
        text,
    )
