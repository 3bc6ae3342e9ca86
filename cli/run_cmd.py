"""`cw-snapshot run`: start a job so that it can be snapshotted."""

from __future__ import annotations

from pathlib import Path

import click

from cw_snapshot.cli.command import Context, absolute, command, note, settings_options
from cw_snapshot.coordinator.jobs import JobState, check_identity, wait
from cw_snapshot.coordinator.start import StartRequest, caller_environment, start_job
from cw_snapshot.errors import ExitCode, UsageError


def parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """`k=v` each."""
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(what=f"--label {text!r} is not of the form key=value")
        labels[check_identity("label", key)] = check_identity("label value", value)
    return labels


@command(
    "run",
    ExitCode.REFUSED,
    ExitCode.ABORTED,
    meanings={
        ExitCode.OK: "the job was started; with --wait the job's own status is passed on",
        ExitCode.REFUSED: "refused; nothing was started",
        ExitCode.ABORTED: "with --wait: interrupted; the job runs on",
    },
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@settings_options()
@click.option("--job-id", required=True, help="The job's name from now on.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label; may be repeated.")
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1, 4096),
    help="Start so many ranks with RANK, LOCAL_RANK and WORLD_SIZE set.",
)
@click.option("--nodes", metavar="A,B", help="Start one tree on each of these nodes, in this order.")
@click.option("--interface", help="With --nodes: that the job uses on each of them.")
@click.option("--user", help="Run the job as this user.")
@click.option(
    "--allow-io-uring",
    is_flag=True,
    help="Let the job use io_uring; a job that does can't be snapshotted.",
)
@click.option("--wait", "wait_for_end", is_flag=True, help="Wait for the job; exit with its status.")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(
    context: Context,
    job_id: str,
    labels: tuple[str, ...],
    nproc_per_node: int | None,
    nodes: str | None,
    interface: str | None,
    user: str | None,
    allow_io_uring: bool,
    wait_for_end: bool,
    cmd: tuple[str, ...],
) -> int:
    """Start CMD as a job, in the background, in its own pid, mount and ipc namespaces.

    Its code is not changed. It finds MASTER_ADDR, MASTER_PORT, NNODES and NODE_RANK in its
    environment, and torchrun its PET_ variables. Its output goes to a file: see `cw-snapshot logs`.
    io_uring seems not to exist for it, so that libraries use epoll instead.

    \b
    cw-snapshot run --job-id llama -- torchrun --nproc-per-node 8 train.py
    """
    store = context.store()
    request = StartRequest(
        job=check_identity("job id", job_id),
        command=cmd,
        labels=parse_labels(labels),
        nproc_per_node=nproc_per_node,
        user=user,
        allow_io_uring=allow_io_uring,
        folder=absolute(Path()),
    )
    if nodes is not None:
        return _on_nodes(context, request, nodes.split(","), interface, wait_for_end=wait_for_end)
    if interface is not None:
        raise UsageError(what="--interface chooses among those of --nodes; give both")
    record = start_job(store, request, caller_environment())
    document = {"job": record.id, "incarnation": record.incarnation, "pid": record.init, "log": record.log}
    started = f"{record.id} runs below pid {record.init}, log {record.log}"
    context.emit("run", document, lambda: click.echo(started))
    if not wait_for_end:
        return 0
    try:
        view = wait(store, record.id)
    except KeyboardInterrupt:
        note(f"interrupted; job {record.id} runs on")
        return int(ExitCode.ABORTED)
    note(f"{record.id} {view.describe()}")
    return int(ExitCode.INTERNAL) if view.state is JobState.LOST else view.exit_code or 0


def _on_nodes(
    context: Context,
    request: StartRequest,
    nodes: list[str],
    interface: str | None,
    *,
    wait_for_end: bool,
) -> int:
    from cw_snapshot.coordinator import cluster_jobs, cluster_wait

    cluster = context.cluster()
    jobs = cluster_jobs.ClusterJobs(context.settings.state_dir)
    job = cluster_jobs.start(cluster, jobs, request, nodes, caller_environment(), interface)
    document = {"job": job.id, "incarnation": job.incarnation, "nodes": job.nodes}
    context.emit("run", document, lambda: click.echo(f"{job.id} runs on {', '.join(job.nodes)}"))
    if not wait_for_end:
        return 0
    try:
        ended = cluster_wait.wait(context.settings.state_dir, job, cluster, note)
    except KeyboardInterrupt:
        note(f"interrupted; job {job.id} runs on")
        return int(ExitCode.ABORTED)
    note(f"{job.id} has ended on all its nodes")
    return ended.exit_code
