"""Settings: /etc/cw-snapshot/config.yaml, then CW_SNAPSHOT_* variables, then flags.

Secrets never come by argv.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cw_snapshot.errors import CwError, ExitCode

CONFIG_FILE = Path("/etc/cw-snapshot/config.yaml")
_PREFIX = "CW_SNAPSHOT_"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_UNIT_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class SettingsError(CwError):
    """A setting can't be used.

    Fix: see docs/settings.md for the names and values.
    """

    exit_code = ExitCode.USAGE


def parse_duration(text: Any) -> timedelta:
    """`500ms`, `5s`, `2m`, `1h`, `1d` or a plain number of seconds.

    :raises ValueError: for anything else.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 5s or 2m")
    return timedelta(seconds=float(match.group(1)) * _UNIT_SECONDS[match.group(2)])


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


class Settings(BaseModel):
    """Everything that can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_dir: Path = Path("/var/lib/cw-snapshot")
    """Jobs, operations and logs; 0700."""
    repository: str | None = None
    """Where snapshots are stored: a path, or later an s3:// URL."""
    max_pause: Duration = timedelta(seconds=5)
    """A take whose pause would be, or gets, longer is given up; the job goes on."""
    threads: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1)), ge=1, le=1024)
    """Threads that read, compress and store pages."""


def load_settings(
    environment: Mapping[str, str], overrides: Mapping[str, Any], config: Path | None = None
) -> Settings:
    """Read the configuration file and lay the environment and the flags over it."""
    path = config or Path(environment.get("CW_SNAPSHOT_CONFIG", CONFIG_FILE))
    values: dict[str, Any] = {}
    if path.exists():
        try:
            values = yaml.safe_load(path.read_text()) or {}
        except yaml.YAMLError as error:
            raise SettingsError(evidence=[f"{path}: {error}"]) from error
        if not isinstance(values, dict):
            raise SettingsError(evidence=[f"{path}: is no mapping"])
    elif config is not None or "CW_SNAPSHOT_CONFIG" in environment:
        raise SettingsError(evidence=[f"{path}: does not exist"])
    for name in Settings.model_fields:
        if (value := environment.get(_PREFIX + name.upper())) is not None:
            values[name] = value
    values.update({k: v for k, v in overrides.items() if v is not None})
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SettingsError(evidence=lines) from error
