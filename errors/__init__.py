"""What every failure of cw-snapshot has in common: a message, evidence, a fix, an exit code.

A leaf: every room imports it, it imports none. The class docstring is the message that the
user reads; see :class:`CwError`.
"""

from cw_snapshot.errors.base import CwError, ExitCode, InternalError, SystemFailedError, UsageError

__all__ = ["CwError", "ExitCode", "InternalError", "SystemFailedError", "UsageError"]
