"""The message of an error is its docstring."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from cw_snapshot import cli, coordinator, snapshot, storage
from cw_snapshot.errors import CwError, ExitCode


class DiskFullError(CwError):
    """The disk {path} is full:
    {free} bytes are free.

    Fix: delete something from {path}.

    This paragraph is for readers of the code.
    """

    exit_code = ExitCode.UNREACHABLE


def test_message_fix_and_evidence() -> None:
    error = DiskFullError(path="/x", free=3, evidence=["df: 100 %"])
    assert error.message == "The disk /x is full: 3 bytes are free."
    assert error.fix == "delete something from /x."
    assert str(error).splitlines() == [error.message, "  df: 100 %", f"Fix: {error.fix}"]
    assert error.code == "disk-full"


def all_errors() -> Iterator[type[CwError]]:
    for package in (cli, coordinator, snapshot, storage):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    waiting = list(CwError.__subclasses__())
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith("cw_snapshot"):
            yield one


@pytest.mark.parametrize("kind", sorted(set(all_errors()), key=lambda k: k.__name__))
def test_every_error_says_what_happened(kind: type[CwError]) -> None:
    text = inspect.cleandoc(kind.__doc__ or "")
    first = " ".join(text.split("\n\n")[0].split())
    assert first, "no message"
    assert isinstance(kind.exit_code, ExitCode)
    if kind.exit_code in (ExitCode.REFUSED, ExitCode.NOT_FOUND, ExitCode.UNREACHABLE, ExitCode.HARMED):
        assert "Fix:" in text or kind.__subclasses__(), f"{kind.__name__} names no fix"
