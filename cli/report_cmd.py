"""`cw-snapshot report`: bundle what a bug report about an operation needs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cw_snapshot.cli.command import Context, absolute, command, note, settings_options
from cw_snapshot.cli.tables import size_text
from cw_snapshot.coordinator.operation_records import find_operation
from cw_snapshot.coordinator.report_bundle import ReportExistsError, make_report, write_report
from cw_snapshot.errors import ExitCode, UsageError


@command(
    "report",
    ExitCode.REFUSED,
    ExitCode.NOT_FOUND,
    meanings={
        ExitCode.REFUSED: "the file exists; nothing was written",
        ExitCode.NOT_FOUND: "no such operation",
    },
)
@settings_options("repository")
@click.option("--output", metavar="FILE|-", help="Where to; a folder, or - for stdout (this folder).")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.argument("operation", metavar="OP")
def report_command(context: Context, output: str | None, force: bool, operation: str) -> None:
    """Bundle what is known of a take or restore for a bug report: cw-snapshot-report-OP.tar.gz.

    OP is the id of an operation or a unique beginning of one, `latest`, or `latest:JOB`. It may have
    succeeded, failed or died, or be under way. Values that look secret are hidden; what is inside, and
    how much was hidden, is told on stderr and in the bundle's README.txt. Nothing is sent anywhere.
    """
    context.store()
    if output == "-" and context.json:
        raise UsageError(what="with --output - the bundle is on stdout, where --json would be")
    folder = find_operation(context.settings.state_dir, operation)
    target = absolute(Path(output or "."))
    if target.is_dir():
        target /= f"cw-snapshot-report-{folder.name}.tar.gz"
    if output != "-" and target.exists() and not force:
        raise ReportExistsError(path=target)
    bundle = make_report(folder, context.settings)
    note(bundle.members["README.txt"].rstrip())
    if output == "-":
        sys.stdout.buffer.write(bundle.archive())
        return
    size = write_report(bundle, target, force=force)
    document = {
        "path": str(target),
        "bytes": size,
        "operation": bundle.operation,
        "kind": bundle.kind,
        "job": bundle.job,
        "standing": bundle.standing,
        "members": list(bundle.members),
        "missing": bundle.missing,
        "redacted": bundle.redacted,
    }
    context.emit("report", document, lambda: click.echo(f"{target}  [{size_text(size)}, for root alone]"))
