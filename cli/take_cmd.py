"""`cw-snapshot take`: take a snapshot of a running job."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.cli.progress import TakeDisplay
from cw_snapshot.cli.tables import printable, size_text
from cw_snapshot.coordinator.cluster_jobs import ClusterJob, ClusterJobs
from cw_snapshot.coordinator.take import TakeReport, TakeRequest, plan_take, refusals_that_stand, take
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.snapshot.predict import Prediction


def _print_plan(report: TakeReport) -> None:
    p = report.predicted
    assert p is not None
    click.echo(f"job           {report.job}: {p.processes} processes, {p.threads} threads")
    click.echo(f"pause         about {_seconds(p.pause_seconds)}")
    click.echo(
        f"memory        {size_text(p.private_bytes)} to read, at most as much extra until it is stored"
    )
    click.echo(f"copied first  {size_text(p.shared_bytes + p.pinned_bytes)} of shared and pinned memory")
    for finding in report.findings:
        click.echo(f"{finding.severity.name.lower():<13} {printable(str(finding))}")
    if not report.findings:
        click.echo("findings      none")


def _print_report(report: TakeReport) -> None:
    if report.pause_seconds is None:
        click.echo(f"{report.snapshot}: job {report.job} was stopped after its snapshot was durable")
    else:
        click.echo(f"{report.snapshot}: job {report.job} paused {_seconds(report.pause_seconds)}")
    stats = report.stats
    click.echo(
        f"  {size_text(stats.seen_bytes)} seen, {size_text(stats.zero_bytes)} zero, "
        f"{size_text(stats.new_bytes)} new, {size_text(stats.stored_bytes)} stored; "
        f"extra memory {size_text(report.extra_memory_bytes)}; durable after {report.durable_seconds:.1f} s"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _warn(report: TakeReport) -> None:
    for finding in report.findings:
        note(f"warning: {finding}")
    for line in report.without_shadow:
        note(f"warning: no shadow could be made, its pages were read during the pause [{line}]")


def pause_warning(predicted: Prediction | None, actual: float | None) -> str:
    """A remark when the pause was far from what was predicted; else empty."""
    if predicted is None or actual is None or actual < 3 * predicted.pause_seconds + 0.1:
        return ""
    return f"the pause was predicted as {_seconds(predicted.pause_seconds)}; was the machine busy?"


@command(
    "take",
    ExitCode.REFUSED,
    ExitCode.ABORTED,
    ExitCode.LOST,
    ExitCode.NOT_FOUND,
    ExitCode.UNREACHABLE,
    ExitCode.HARMED,
    meanings={ExitCode.REFUSED: "refused before anything was stopped (also with --plan)"},
)
@settings_options("repository", "max_pause", "threads", "limit_memory")
@click.option("--pid", type=int, help="Take the tree below this process, which we did not start.")
@click.option("--stop", "stop_job", is_flag=True, help="Kill the job once its snapshot is durable.")
@click.option("--name", help="A name for the snapshot.")
@click.option("--plan", is_flag=True, help="Only tell what a take would find and cost.")
@click.option("--force", is_flag=True, help="Try although preflight refuses; a failed dump is undone.")
@click.argument("job", required=False)
def take_command(
    context: Context,
    pid: int | None,
    stop_job: bool,
    name: str | None,
    plan: bool,
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
        request = TakeRequest(job or f"pid-{pid}", pid, stop=stop_job, name=name, force=force)
    elif job is not None and (known := ClusterJobs(context.settings.state_dir).find(job)) is not None:
        return _on_nodes(context, known, stop=stop_job, name=name, force=force)
    elif job is not None:
        record = store.running(job)
        request = TakeRequest(job, record.root_pid, record, stop=stop_job, name=name, force=force)
    else:
        raise UsageError(what="name a job, or a process with --pid")
    if plan:
        planned = plan_take(request, context.settings)
        context.emit("take-plan", planned.to_json(), lambda: _print_plan(planned))
        return int(ExitCode.REFUSED) if refusals_that_stand(planned.findings, force=force) else 0
    with TakeDisplay() as display:
        report = take(request, store, context.repository(), context.settings, display)
    _warn(report)
    if remark := pause_warning(report.predicted, report.pause_seconds):
        note(f"note: {remark}")
    context.emit("take", report.to_json(), lambda: _print_report(report))
    return 0


def _on_nodes(context: Context, job: ClusterJob, *, stop: bool, name: str | None, force: bool) -> int:
    from cw_snapshot.coordinator import cluster_take

    request = cluster_take.ClusterTakeRequest(job, stop=stop, name=name, force=force)
    url = context.settings.repository or ""
    report = cluster_take.take(
        request, context.cluster(), context.repository(), url, context.settings, lambda *_: None
    )

    def text() -> None:
        pause = "was stopped" if report.pause_seconds is None else f"paused {_seconds(report.pause_seconds)}"
        click.echo(f"{report.snapshot}: job {report.job} on {len(report.nodes)} nodes {pause}")

    context.emit("take", report.to_json(), text)
    return 0
