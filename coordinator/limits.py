"""The resource limits of this command: as high as they may be for us, the caller's for its jobs."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cw_snapshot.errors import CwError, ExitCode

_LEAST_DESCRIPTORS = 1024
_callers_soft: int | None = None
"""The caller's soft limit of descriptors, once it was raised."""


class LimitsTooLowError(CwError):
    """The resource limits of this command are too low; nothing was touched.

    Fix: raise them for the caller: `ulimit -Hn 1048576` and `ulimit -f unlimited`, or LimitNOFILE=
    and LimitFSIZE= of its service.
    """

    exit_code = ExitCode.REFUSED


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: every process of a job takes some."""
    global _callers_soft
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _callers_soft = soft


@contextmanager
def callers_limits() -> Iterator[None]:
    """Within, processes are started with the soft limit that the caller gave us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _callers_soft is None:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (_callers_soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refuse_low_limits() -> None:
    """:raises LimitsTooLowError: a take or restore might fail in its middle."""
    low = []
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _LEAST_DESCRIPTORS:
        low.append(f"open files (RLIMIT_NOFILE): {hard}; at least {_LEAST_DESCRIPTORS} are needed")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        low.append(f"file size (RLIMIT_FSIZE): {size} bytes; it must be unlimited")
    if low:
        raise LimitsTooLowError(evidence=low)
