"""The error base class and the exit codes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command. Stable: scripts and schedulers branch on them."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    REFUSED = 3
    """Refused by preflight; the job was not touched."""
    ABORTED = 4
    """Aborted before the snapshot was complete; the job runs on."""
    LOST = 5
    """The job runs on, but its snapshot was lost after the pause had ended."""
    NOT_FOUND = 6
    INTEGRITY = 7
    """Damaged, foreign or wrongly keyed data."""
    UNREACHABLE = 8
    """The store does not answer."""
    NOT_PERMITTED = 9
    HARMED = 10
    """The job may be harmed. The report says how."""
    WARNINGS = 20
    """`doctor` only."""
    FAILURES = 21
    """`doctor` only."""


EXIT_MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "success",
    ExitCode.INTERNAL: "internal error",
    ExitCode.USAGE: "wrong usage",
    ExitCode.REFUSED: "refused before anything was done; the job was not touched",
    ExitCode.ABORTED: "aborted; the job runs on as before",
    ExitCode.LOST: "snapshot lost after the pause; the job runs on as before",
    ExitCode.NOT_FOUND: "no such job, snapshot or repository",
    ExitCode.INTEGRITY: "damaged or foreign data, or a wrong key",
    ExitCode.UNREACHABLE: "the store does not answer",
    ExitCode.NOT_PERMITTED: "not permitted",
    ExitCode.HARMED: "the job may be harmed; the report says how",
    ExitCode.WARNINGS: "works, with warnings",
    ExitCode.FAILURES: "something needed is missing",
}

_FIX = re.compile(r"^Fix:\s*", re.IGNORECASE)


class CwError(Exception):
    """Something went wrong."""

    # A subclass states cause and fix in its docstring, with the keyword arguments of its
    # constructor as `str.format` fields: the first paragraph is the message, a paragraph that
    # begins with "Fix:" the fix, anything else is for readers of the code. `evidence` are the
    # facts that led to it (pid, descriptor, path), one per line.

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, *, evidence: Sequence[str] = (), **fields: Any) -> None:
        paragraphs = [" ".join(p.split()) for p in inspect.cleandoc(type(self).__doc__ or "").split("\n\n")]
        fixes = [_FIX.sub("", p) for p in paragraphs if _FIX.match(p)]
        self.fields = fields
        self.evidence = list(evidence)
        self.message = paragraphs[0].format(**fields)
        self.fix = fixes[0].format(**fields) if fixes else ""
        super().__init__(self.message)

    @property
    def code(self) -> str:
        """Name of this kind of error in JSON output, for example `snapshot-not-found`."""
        name = type(self).__name__.removesuffix("Error")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()

    def __str__(self) -> str:
        lines = [self.message, *(f"  {line}" for line in self.evidence)]
        if self.fix:
            lines.append(f"Fix: {self.fix}")
        return "\n".join(lines)


class InternalError(CwError):
    """Internal error: {what}. This is a defect of cw-snapshot.

    Fix: report it; `cw-snapshot report latest` bundles what is known of a take or restore.
    """


class SystemFailedError(CwError):
    """The system refused: {why}.

    Fix: see what it says; with CW_SNAPSHOT_TRACEBACK=1 the command tells where it happened.
    """

    def __init__(self, error: OSError) -> None:
        paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
        super().__init__(why=error.strerror or str(error) or type(error).__name__, evidence=paths)


class UsageError(CwError):
    """{what}"""

    exit_code = ExitCode.USAGE
