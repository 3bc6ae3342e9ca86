"""`cw-snapshot take`: take a snapshot of a running job."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.cli.progress import TakeDisplay
from cw_snapshot.cli.take_report import print_plan, print_report, seconds_text
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs
from cw_snapshot.coordinator.take import TakeRequest, plan_take, refusals_that_stand, take
from cw_snapshot.coordinator.take_report import TakeReport
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.snapshot.predict import Prediction


def _warn(report: TakeReport) -> None:
    for finding in report.findings:
        note(f"warning: {finding}")
    for line in report.without_shadow:
        note(f"warning: no shadow could be made, its pages were read during the pause [{line}]")


def pause_warning(predicted: Prediction | None, actual: float | None) -> str:
    """A remark when the pause was far from what was predicted; else empty."""
    if predicted is None or actual is None or actual < 3 * predicted.pause_seconds + 0.1:
        return ""
    return f"the pause was predicted as {seconds_text(predicted.pause_seconds)}; was the machine busy?"


@command(
    "take",
    ExitCode.REFUSED,
    ExitCode.ABORTED,
    ExitCode.LOST,
    ExitCode.NOT_FOUND,
    ExitCode.INTEGRITY,
    ExitCode.UNREACHABLE,
    ExitCode.HARMED,
    meanings={ExitCode.REFUSED: "refused before anything was stopped (also with --plan)"},
)
@settings_options("repository", "max_pause", "threads", "limit_memory")
@click.option(
    "--pid", type=click.IntRange(min=1), help="Take the tree below this process, which we did not start."
)
@click.option("--stop", "stop_job", is_flag=True, help="Kill the job once its snapshot is durable.")
@click.option("--name", help="A name for the snapshot.")
@click.option("--plan", is_flag=True, help="Only tell what a take would find and cost.")
@click.option(
    "--collapse",
    is_flag=True,
    help="First make huge pages of the job's small ones: seconds of one core per GiB, a shorter pause.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Try although preflight refuses, but for what would stop this command or the machine.",
)
@click.argument("job", required=False)
def take_command(
    context: Context,
    pid: int | None,
    stop_job: bool,
    name: str | None,
    plan: bool,
    collapse: bool,
    force: bool,
    job: str | None,
) -> int:
    """Take a snapshot of JOB while it runs.

    The job pauses for milliseconds; its memory is then read from a copy-on-write shadow while it
    goes on, and stored in the repository. With --pid, JOB is the name that the tree gets; without
    it that is pid-PID.

    \b
    cw-snapshot take llama
    cw-snapshot take --pid 4711
    """
    store = context.store()
    if pid is not None:
        name_of_job, root, record = job or f"pid-{pid}", pid, None
    elif job is not None and (known := ClusterJobs(context.settings.state_dir).find(job)) is not None:
        if plan or collapse:
            raise UsageError(
                what=f"job {job} runs on several nodes; --plan and --collapse are for jobs on one node yet"
            )
        return _on_nodes(context, known, stop=stop_job, name=name, force=force)
    elif job is not None:
        record = store.running(job)
        name_of_job, root = job, record.root_pid
    else:
        raise UsageError(what="name a job, or a process with --pid")
    request = TakeRequest(name_of_job, root, record, stop=stop_job, name=name, force=force, collapse=collapse)
    if plan:
        planned = plan_take(request, context.settings)
        context.emit("take-plan", planned.to_json(), lambda: print_plan(planned))
        return int(ExitCode.REFUSED) if refusals_that_stand(planned.findings, force=force) else 0
    with TakeDisplay() as display:
        report = take(request, store, context.repository(), context.settings, display)
    _warn(report)
    if remark := pause_warning(report.predicted, report.pause_seconds):
        note(f"note: {remark}")
    context.emit("take", report.to_json(), lambda: print_report(report))
    return 0


def _on_nodes(context: Context, job: ClusterJob, *, stop: bool, name: str | None, force: bool) -> int:
    from cw_snapshot.coordinator import cluster_take

    request = cluster_take.ClusterTakeRequest(job, stop=stop, name=name, force=force)
    url = context.settings.repository or ""
    report = cluster_take.take(
        request, context.cluster(), context.repository(), url, context.settings, lambda *_: None
    )

    for remark in report.notes:
        note(f"WARNING: {remark}")

    def text() -> None:
        pause = (
            "was stopped" if report.pause_seconds is None else f"paused {seconds_text(report.pause_seconds)}"
        )
        click.echo(f"{report.snapshot}: job {report.job} on {len(report.nodes)} nodes {pause}")

    context.emit("take", report.to_json(), text)
    return 0
