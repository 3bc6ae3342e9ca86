"""`cw-snapshot list`: list snapshots."""

from __future__ import annotations

from typing import Any

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.cli.tables import print_table, size_text
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.storage.commit import Commit
from cw_snapshot.storage.errors import SnapshotNotFoundError


def describe(commit: Commit) -> dict[str, Any]:
    """A snapshot as `list --json` and `show --json` tell of it."""
    return {
        "job": commit.job,
        "snapshot": commit.snapshot,
        "name": commit.name,
        "incarnation": commit.incarnation,
        "created": commit.created.isoformat(timespec="seconds"),
        "nodes": [n.node for n in commit.nodes],
        "summary": {k: v for k, v in commit.summary.items() if k != "job"},
    }


def _row(commit: Commit) -> tuple[str, ...]:
    taken = commit.summary.get("take", {})
    pages = taken.get("pages", {})
    pause = taken.get("pause_seconds")
    return (
        commit.snapshot,
        commit.job,
        commit.name or "-",
        str(commit.incarnation),
        str(len(commit.nodes)),
        str(commit.summary.get("processes", "?")),
        size_text(pages.get("seen_bytes", 0)),
        size_text(pages.get("stored_bytes", 0)),
        "stopped" if pause is None else f"{pause * 1e3:.0f} ms",
    )


@command("list", ExitCode.NOT_FOUND, ExitCode.INTEGRITY, ExitCode.UNREACHABLE)
@settings_options("repository")
@click.argument("job", required=False)
def list_command(context: Context, job: str | None) -> int:
    """List the snapshots in the repository, or those of JOB, from the oldest to the newest."""
    repository = context.repository()
    commits: list[Commit] = []
    damaged: list[CwError] = []
    refs = repository.list_snapshots(job)
    if job is not None and not refs:
        raise SnapshotNotFoundError(token=f"latest:{job}")
    for ref in refs:
        try:
            commits.append(repository.read_commit(ref))
        except CwError as error:
            damaged.append(error)

    commits.sort(key=lambda commit: commit.created)

    def text() -> None:
        heads = ("SNAPSHOT", "JOB", "NAME", "INCARNATION", "NODES", "PROCESSES", "SIZE", "STORED", "PAUSE")
        print_table(heads, [_row(c) for c in commits])

    document = {"snapshots": [describe(c) for c in commits], "damaged": [e.message for e in damaged]}
    context.emit("list", document, text)
    for problem in damaged:
        note(f"cw-snapshot: {problem}")
    return int(ExitCode.INTEGRITY) if damaged else 0
