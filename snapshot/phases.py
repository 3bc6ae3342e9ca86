"""How long the phases of a take may last, and how long those of the pause did."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each phase may take."""

    open: timedelta
    stop: timedelta
    """One try."""
    stop_tries: int
    skeleton: timedelta
    shadow: timedelta
    hold: timedelta
    """Longest time for which tasks are held when their pages must be read directly."""
    give_up: timedelta
    """How long criu may take to give up cleanly before it is killed."""
    pause: timedelta | None
    """From the first SIGSTOP; after it the take is given up. None: the job does not go on anyway."""


@dataclass(slots=True)
class PauseTimes:
    """Seconds after the first SIGSTOP at which each point of the pause was reached."""

    begin: float = 0.0
    """CLOCK_MONOTONIC of the first SIGSTOP."""
    stopped: float = 0.0
    frozen: float = 0.0
    dumped: float = 0.0
    read: float = 0.0
    """Files and mappings that must be read during the stop have been read."""
    shadowed: float = 0.0
    went: float = 0.0

    def mark(self, name: str) -> None:
        setattr(self, name, time.monotonic() - self.begin)

    def to_json(self) -> dict[str, float]:
        names = ("stopped", "frozen", "dumped", "read", "shadowed", "went")
        return {name: round(getattr(self, name), 6) for name in names}
