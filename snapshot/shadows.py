"""Keeping shadows: the program that holds them stopped and tells when one has died."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import procfs
from cw_snapshot.snapshot.native import program
from cw_snapshot.snapshot.procfs import ProcessGoneError
from cw_snapshot.snapshot.tree import SHADOW_COMM


class ShadowDiedError(CwError):
    """The shadow of process {pid} died before all its pages were read; the snapshot is lost, the
    job runs on.

    Fix: shadows die first when memory runs short: take again with more headroom, or with
    `--stop`, which needs none.
    """

    exit_code = ExitCode.LOST


class Shadows:
    """All shadows of one take, held stopped by one `cw-keeper`.

    When this process dies, the keeper drops every shadow; when the keeper dies, the kernel does.
    """

    def __init__(self, pids: Sequence[int], ready: timedelta) -> None:
        self._alive = set(pids)
        self._dropped: set[int] = set()
        self._changed = threading.Condition()
        self._kept = False
        self._keeper = subprocess.Popen(
            [program("cw-keeper"), *map(str, pids)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="shadow keeper", daemon=True)
        self._listener.start()
        with self._changed:
            self._changed.wait_for(lambda: self._kept or not self._alive, ready.total_seconds())
            if not self._kept:
                self._alive.clear()

    def _listen(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            word, _, pid = line.strip().partition(" ")
            with self._changed:
                if word == "kept":
                    self._kept = True
                elif pid:
                    self._alive.discard(int(pid))
                self._changed.notify_all()
        # Without its keeper no shadow lives.
        with self._changed:
            self._alive.clear()
            self._changed.notify_all()

    def alive(self, pid: int) -> bool:
        """Whether a shadow still is what it was when it was made. Ask after the last read: a
        dead shadow reads as zero bytes without an error."""
        with self._changed:
            if pid not in self._alive:
                return False
        try:
            return procfs.read_stat(pid).state not in "ZX"
        except ProcessGoneError:
            return False

    def drop(self, pid: int) -> None:
        """Kill one shadow; its memory is free for the job again."""
        with self._changed:
            if pid in self._dropped or pid not in self._alive or self._keeper.stdin is None:
                return
            self._dropped.add(pid)
        try:
            self._keeper.stdin.write(f"drop {pid}\n")
            self._keeper.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def close(self) -> None:
        """Drop all shadows and wait until they are gone."""
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            self._keeper.stdin.close()
        self._keeper.wait()
        self._listener.join()


def find_shadows() -> list[int]:
    """Pids of all shadows on this machine, alive or zombie, whoever made them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if procfs.read_stat(int(entry.name)).comm == SHADOW_COMM:
                    found.append(int(entry.name))
            except ProcessGoneError:
                continue
    return found
