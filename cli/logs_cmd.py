"""`cw-snapshot logs`: show a job's output."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs
from cw_snapshot.coordinator.job_logs import Prefixer, ReadLog, follow, read_log, read_to_present_end
from cw_snapshot.coordinator.placement import member_names
from cw_snapshot.errors import CwError, ExitCode, UsageError

_POLL = timedelta(milliseconds=200)


@command(
    "logs",
    ExitCode.NOT_FOUND,
    ExitCode.ABORTED,
    meanings={ExitCode.ABORTED: "interrupted, the job runs on; or a node does not answer"},
)
@settings_options()
@click.option("--follow", "-f", "following", is_flag=True, help="Go on until the job has ended.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option(
    "--node", "nodes", multiple=True, metavar="NODE", help="Only what ran on this node; may be repeated."
)
@click.argument("job")
def logs_command(
    context: Context, following: bool, tail: int | None, nodes: tuple[str, ...], job: str
) -> None:
    """Print the stdout and stderr of JOB.

    Of a job on several nodes each line begins with the name of its node; with -f as they come, else one
    node after the other.
    """
    if following and context.json:
        raise UsageError(what="--json is one document, and --follow has no end; give one of them")
    store = context.store()
    known = ClusterJobs(context.settings.state_dir).find(job)
    if known is not None:
        with _reads_of(context, known, nodes) as reads:
            _print(context, job, reads, following=following, tail=tail)
        return
    if nodes:
        raise UsageError(what=f"{job} is no job on several nodes; give no --node")
    store.find(job)
    _print(context, job, {"": partial(read_log, store, job)}, following=following, tail=tail)


@contextmanager
def _reads_of(context: Context, job: ClusterJob, nodes: Sequence[str]) -> Iterator[dict[str, ReadLog]]:
    strangers = set(nodes) - set(job.nodes)
    if strangers:
        raise UsageError(
            what=f"job {job.id} runs on {', '.join(job.nodes)}, not on {', '.join(sorted(strangers))}"
        )
    names = member_names(job.nodes)
    wanted = [tree for tree, node in enumerate(job.nodes) if not nodes or node in nodes]
    with context.cluster().connect([job.nodes[tree] for tree in wanted]) as clients:
        yield {names[tree]: partial(clients[job.nodes[tree]].log, job.id, tree) for tree in wanted}


def _print(
    context: Context, job: str, reads: Mapping[str, ReadLog], *, following: bool, tail: int | None
) -> None:
    if context.json:
        _emit(context, job, reads, tail)
        return
    prefixer = Prefixer(reads) if len(reads) > 1 else None

    def write(name: str, data: bytes) -> None:
        sys.stdout.buffer.write(prefixer.lines(name, data) if prefixer else data)

    failed: list[CwError] = []
    if following:
        for name, data in follow(reads, tail, _POLL, note):
            write(name, data)
            sys.stdout.buffer.flush()
    else:
        for name, read in reads.items():
            try:
                for block in read_to_present_end(read, tail):
                    write(name, block.data)
            except CwError as error:
                failed.append(error)
    if prefixer:
        sys.stdout.buffer.write(prefixer.end())
    if failed:
        sys.stdout.buffer.flush()
        failed[0].evidence += [error.message for error in failed[1:]]
        raise failed[0]


def _emit(context: Context, job: str, reads: Mapping[str, ReadLog], tail: int | None) -> None:
    trees = []
    for name, read in reads.items():
        blocks = list(read_to_present_end(read, tail))
        output = b"".join(block.data for block in blocks).decode(errors="replace")
        trees.append({"node": name, "path": blocks[0].path, "output": output})
    if "" in reads:
        context.emit(
            "logs", {"job": job, "path": trees[0]["path"], "output": trees[0]["output"]}, lambda: None
        )
    else:
        context.emit("logs", {"job": job, "trees": trees}, lambda: None)
