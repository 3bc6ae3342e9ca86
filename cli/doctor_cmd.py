"""`cw-snapshot doctor`: check this machine."""

from __future__ import annotations

import os

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.coordinator.leftovers import Leftover, find_leftovers
from cw_snapshot.errors import ExitCode
from cw_snapshot.snapshot.findings import Finding, Severity
from cw_snapshot.snapshot.machine_checks import all_checks

_MARK = {Severity.OK: "ok  ", Severity.WARNING: "warn", Severity.REFUSAL: "FAIL"}


def as_finding(leftover: Leftover, removed: bool) -> Finding:
    if removed:
        return Finding("leftover", Severity.OK, f"removed: {leftover.what}", leftover.evidence)
    fix = "`cw-snapshot doctor --fix` removes it"
    return Finding("leftover", Severity.WARNING, leftover.what, leftover.evidence, fix)


def exit_code(findings: list[Finding]) -> ExitCode:
    worst = max(f.severity for f in findings)
    return {
        Severity.OK: ExitCode.OK,
        Severity.WARNING: ExitCode.WARNINGS,
        Severity.REFUSAL: ExitCode.FAILURES,
    }[worst]


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"{_MARK[finding.severity]}  {finding.what}")
        if finding.severity is not Severity.OK:
            if finding.evidence:
                click.echo(f"        {finding.evidence}")
            if finding.fix:
                click.echo(f"        fix: {finding.fix}")


@command("doctor", ExitCode.WARNINGS, ExitCode.FAILURES)
@settings_options()
@click.option("--fix", is_flag=True, help="Remove what dead takes and restores have left.")
def doctor_command(context: Context, fix: bool) -> int:
    """Check whether this machine can take and restore snapshots, and what dead runs have left."""
    findings = all_checks()
    if os.geteuid() == 0:
        for leftover in find_leftovers():
            if fix:
                leftover.remove()
            findings.append(as_finding(leftover, fix))
    code = exit_code(findings)
    document = {"findings": [f.to_json() for f in findings], "exit_code": int(code)}
    context.emit("doctor", document, lambda: _print(findings))
    return int(code)
