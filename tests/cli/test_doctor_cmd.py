"""How `doctor` sums up."""

from __future__ import annotations

from cw_snapshot.cli.doctor_cmd import as_finding, exit_code
from cw_snapshot.coordinator.leftovers import Leftover
from cw_snapshot.errors import ExitCode
from cw_snapshot.snapshot.findings import Finding, Severity


def finding(severity: Severity) -> Finding:
    return Finding("code", severity, "what")


def test_the_worst_decides() -> None:
    ok, warning, refusal = (finding(s) for s in (Severity.OK, Severity.WARNING, Severity.REFUSAL))
    assert exit_code([ok]) is ExitCode.OK
    assert exit_code([warning, ok]) is ExitCode.WARNINGS
    assert exit_code([ok, refusal, warning]) is ExitCode.FAILURES


def test_leftovers() -> None:
    leftover = Leftover("a shadow", "pid 7", lambda: None)
    assert as_finding(leftover, removed=True).severity is Severity.OK
    left = as_finding(leftover, removed=False)
    assert left.severity is Severity.WARNING
    assert "--fix" in left.fix
