"""Who asked for an operation."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Any

from cw_snapshot.coordinator.operation_records import host


def who(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """User, uid and host of this command; `sudo_user` when somebody called it by sudo.

    What sudo says is a variable of root's environment: a hint for people, no evidence against anybody.

    :param environment: None for ours.
    """
    uid = os.getuid()
    sudo_user = (os.environ if environment is None else environment).get("SUDO_USER")
    found = {"user": _name(uid), "uid": uid, "host": host()}
    if sudo_user and sudo_user != found["user"]:
        found["sudo_user"] = sudo_user
    return found


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container without that user
        return str(uid)


def who_text(found: Mapping[str, Any]) -> str:
    """For a table: alice (root)@host."""
    if not found:
        return "-"
    user = str(found.get("user", "?"))
    if found.get("sudo_user"):
        user = f"{found['sudo_user']} (as {user})"
    return f"{user}@{found.get('host', '?')}"
