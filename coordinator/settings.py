"""Settings: /etc/cw-snapshot/config.yaml, then CW_SNAPSHOT_* variables, then flags.

Secrets never come by argv. Every command reads them, so this stays light: a dataclass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot.dump_options import LOG_LEVEL

CONFIG_FILE = Path("/etc/cw-snapshot/config.yaml")
_PREFIX = "CW_SNAPSHOT_"
_MOST_THREADS = 1024
_MOST_KEPT = 1_000_000

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_UNIT_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=365)
_LARGEST = 1 << 60


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_STEPS = ("", "K", "M", "G", "T")


class SettingsError(CwError):
    """A setting can't be used.

    Fix: see docs/settings.md for the names and values.
    """

    exit_code = ExitCode.USAGE


def parse_duration(text: Any) -> timedelta:
    """`500ms`, `5s`, `2m`, `1h`, `1d` or a plain number of seconds.

    :raises ValueError: for anything else.
    """
    match = _DURATION.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 5s or 2m")
    seconds = float(match.group(1)) * _UNIT_SECONDS[match.group(2)]
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"{text!r} is longer than a year")
    return timedelta(seconds=seconds)


def parse_size(text: Any) -> int:
    """`512M`, `2GiB` or a plain number of bytes; powers of 1024.

    :raises ValueError: for anything else.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a size such as 512M or 2G")
    size = float(match.group(1)) * 1024 ** _SIZE_STEPS.index(match.group(2).upper())
    if size > _LARGEST:
        raise ValueError(f"{text!r} is larger than an exbibyte")
    return int(size)


def _parse_threads(text: Any) -> int:
    if not str(text).isdecimal() or not 1 <= int(str(text)) <= _MOST_THREADS:
        raise ValueError(f"{text!r} is not a number from 1 to {_MOST_THREADS}")
    return int(str(text))


def _parse_count(text: Any) -> int:
    if not str(text).isdecimal() or not 1 <= int(str(text)) <= _MOST_KEPT:
        raise ValueError(f"{text!r} is not a number from 1 to {_MOST_KEPT}")
    return int(str(text))


def _parse_log_level(text: Any) -> int:
    if str(text) not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"{text!r} is not a level from 0 to 4")
    return int(str(text))


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set."""

    state_dir: Path = Path("/var/lib/cw-snapshot")
    """Jobs, operations and logs; 0700."""
    repository: str | None = None
    """Where snapshots are stored: a path, or later an s3:// URL."""
    cluster: Path | None = None
    """File that names the nodes and our certificate."""
    max_pause: timedelta = timedelta(seconds=5)
    """A take whose pause would be, or gets, longer is given up; the job goes on."""
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Threads that read, compress and store pages."""
    limit_memory: int | None = None
    """Bytes of buffers of a take; None for a quarter of what is available."""
    keep_operations: int = 1000
    """Records of operations that are kept: the newest."""
    keep_operations_for: timedelta = timedelta(days=180)
    """Older records of operations are deleted."""
    criu_log_level: int = LOG_LEVEL
    """0 to 4; 4 tells every step and makes pauses longer."""

    def to_json(self) -> dict[str, Any]:
        """As records tell them. The repository's URL may hold a password."""
        return {
            "state_dir": str(self.state_dir),
            "repository": self.repository,
            "max_pause_seconds": self.max_pause.total_seconds(),
            "threads": self.threads,
            "limit_memory": self.limit_memory,
            "criu_log_level": self.criu_log_level,
        }


def _absolute(text: Any) -> Path:
    """A path that means the same for later commands in other folders."""
    try:
        return Path(text).absolute()
    except FileNotFoundError as error:
        raise ValueError(f"{text!r} is relative, and the current folder does not exist any more") from error


def _repository(text: Any) -> str:
    return str(text) if not text or "://" in str(text) else str(_absolute(str(text)))


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "state_dir": _absolute,
    "repository": _repository,
    "cluster": _absolute,
    "max_pause": parse_duration,
    "threads": _parse_threads,
    "limit_memory": parse_size,
    "keep_operations": _parse_count,
    "keep_operations_for": parse_duration,
    "criu_log_level": _parse_log_level,
}


def load_settings(
    environment: Mapping[str, str], overrides: Mapping[str, Any], config: Path | None = None
) -> Settings:
    """Read the configuration file and lay the environment and the flags over it."""
    path = config or Path(environment.get("CW_SNAPSHOT_CONFIG", CONFIG_FILE))
    required = config is not None or "CW_SNAPSHOT_CONFIG" in environment
    values = {name: (value, str(path)) for name, value in _read_config(path, required=required).items()}
    for known in fields(Settings):
        variable = _PREFIX + known.name.upper()
        if variable in environment:
            values[known.name] = environment[variable], variable
    values |= {name: (value, _flag(name)) for name, value in overrides.items() if value is not None}
    return Settings(**_parsed(values))


def _flag(name: str) -> str:
    return "--repo" if name == "repository" else "--" + name.replace("_", "-")


def _read_config(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if required:
            raise SettingsError(evidence=[f"{path}: does not exist"]) from error
        return {}
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no text"
        raise SettingsError(evidence=[f"{path}: {why}"]) from error
    import yaml

    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SettingsError(evidence=[f"{path}: {error}"]) from error
    if not isinstance(values, dict):
        raise SettingsError(evidence=[f"{path}: is no mapping"])
    return values


def _parsed(values: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """Parse every value; all mistakes are reported at once, each with its source."""
    found, mistakes = {}, []
    for name, (value, source) in values.items():
        if name not in _PARSERS:
            known = ", ".join(_PARSERS)
            mistakes.append(f"{source}: there is no setting {name!r}; there are {known}")
            continue
        try:
            found[name] = _PARSERS[name](value)
        except (TypeError, ValueError) as error:
            mistakes.append(f"{source}: {name}: {error}")
    if mistakes:
        raise SettingsError(evidence=mistakes)
    return found
