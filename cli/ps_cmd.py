"""`cw-snapshot ps`: list jobs."""

from __future__ import annotations

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.cli.tables import cut, print_table
from cw_snapshot.coordinator.jobs import JobState, JobView, to_json
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


@command("ps")
@settings_options()
@click.option("--all", "-a", "everything", is_flag=True, help="Also jobs that have ended.")
def ps_command(context: Context, everything: bool) -> None:
    """List the jobs of this node."""
    views = [v for v in context.store().all() if everything or v.state is JobState.RUNNING]

    def text() -> None:
        rows = [
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
        print_table(("JOB", "STATE", "INCARNATION", "PID", "PROCESSES", "STARTED", "COMMAND"), rows)

    context.emit("ps", {"jobs": [to_json(v) for v in views]}, text)
