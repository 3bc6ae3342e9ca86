"""Errors that happened on another node, as they are told here."""

from __future__ import annotations

import json
from typing import Any

from cw_snapshot.errors import CwError, ExitCode, InternalError, SystemFailedError


class RemoteError(CwError):
    """{told}"""

    # What the class of the error says is fixed; what this one says came over the wire.

    exit_code = ExitCode.INTERNAL

    def __init__(self, document: dict[str, Any], node: str) -> None:
        super().__init__(told=f"{node}: {document['message']}", evidence=document["evidence"])
        self.plain = str(document["message"])
        """Without the node."""
        self.fix = document["fix"]
        self.exit_code = ExitCode(document["exit_code"])  # type: ignore[misc]
        self._code = document["code"]

    @property
    def code(self) -> str:
        return str(self._code)


def error_document(error: BaseException) -> dict[str, Any]:
    """An error as it is told to others, and as `--json` prints it."""
    if isinstance(error, OSError):
        error = SystemFailedError(error)
    if not isinstance(error, CwError):
        error = InternalError(what=f"{type(error).__name__}: {error}")
    return {
        "code": error.code,
        "exit_code": int(error.exit_code),
        "message": error.message,
        "evidence": error.evidence,
        "fix": error.fix,
    }


def to_text(error: BaseException) -> str:
    return json.dumps(error_document(error))


def from_text(text: str, node: str) -> CwError:
    """:param text: of :func:`to_text` on that node."""
    try:
        return RemoteError(json.loads(text), node)
    except (ValueError, KeyError, TypeError):
        return InternalError(what=f"{node} sent an error that can't be read: {text[:200]!r}")
