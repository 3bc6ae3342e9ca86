"""`cw-snapshot stop`: stop a job."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator import deadlines
from cw_snapshot.coordinator.cluster_jobs import ClusterJobs, end
from cw_snapshot.coordinator.jobs import stop, to_json
from cw_snapshot.coordinator.settings import parse_duration
from cw_snapshot.errors import ExitCode, UsageError


@command(
    "stop",
    ExitCode.NOT_FOUND,
    ExitCode.ABORTED,
    meanings={ExitCode.ABORTED: "the job was killed, and has not ended yet"},
)
@settings_options()
@click.option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL (10s).")
@click.argument("job")
def stop_command(context: Context, grace: str | None, job: str) -> None:
    """Stop JOB: SIGTERM to its root, SIGKILL when it has not ended within the grace time."""
    try:
        limit = deadlines.STOP_GRACE if grace is None else parse_duration(grace)
    except ValueError as error:
        raise UsageError(what=f"--grace: {error}") from error
    store = context.store()
    known = ClusterJobs(context.settings.state_dir).find(job)
    if known is not None:
        facts = end(known, context.cluster(), limit)
        document = {
            "job": job,
            "nodes": known.nodes,
            "exit_codes": [facts[t].exit_code for t in sorted(facts)],
        }
        context.emit("stop", document, lambda: click.echo(f"{job} has ended on {', '.join(known.nodes)}"))
        return
    view = stop(store, job, limit)
    context.emit("stop", to_json(view), lambda: click.echo(f"{job} {view.describe()}"))
