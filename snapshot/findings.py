"""Findings: facts about a job or a machine that a user should know of, with evidence and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad a finding is."""

    OK = 0
    WARNING = 1
    """It works, at a cost that is named."""
    REFUSAL = 2
    """A take would fail: it is refused before anything is stopped."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, with the evidence that led to it and what to do about it."""

    code: str
    """Stable name, for example `io-uring`."""
    severity: Severity
    what: str
    evidence: str = ""
    """Pid, descriptor, path."""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "severity": self.severity.name.lower()}

    def __str__(self) -> str:
        text = self.what if not self.evidence else f"{self.what} [{self.evidence}]"
        return f"{text}; fix: {self.fix}" if self.fix else text


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity is Severity.REFUSAL]
