"""Progress on stderr: a bar with rate and time left on a terminal, a line per phase elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click

from cw_snapshot.storage.writer import WriteStats

if TYPE_CHECKING:  # rich costs 30 ms, and scripts have no terminal
    from rich.progress import Progress, TaskID


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class Display:
    """Shows phases and, in phases with bytes, how far they are."""

    def __init__(self) -> None:
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task: TaskID | None = None

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def phase(self, name: str) -> None:
        if self._bar is None:
            click.echo(f"{name} ...", err=True)
            return
        if self._task is None:
            self._task = self._bar.add_task(name, total=None)
        self._bar.update(self._task, description=name, completed=0, total=None)

    def bytes_done(self, done: int, total: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)


class TakeDisplay(Display):
    """Progress of a take."""

    def __enter__(self) -> TakeDisplay:
        super().__enter__()
        return self

    def pages(self, stats: WriteStats, total: int) -> None:
        self.bytes_done(stats.seen_bytes, total)


class RestoreDisplay(Display):
    """Progress of a restore."""

    def __enter__(self) -> RestoreDisplay:
        super().__enter__()
        return self

    def pages(self, done: int, total: int) -> None:
        self.bytes_done(done, total)
