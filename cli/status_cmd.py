"""`cw-snapshot status`: what takes and restores run, and what came of the last ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from cw_snapshot.cli.command import Context, command, note, settings_options
from cw_snapshot.cli.tables import cut, print_table, size_text
from cw_snapshot.coordinator.operation_records import (
    DIED,
    ELSEWHERE,
    RUNNING,
    by_age,
    is_part,
    summary,
)
from cw_snapshot.coordinator.who import who_text

_RECENT = 10
"""Operations that have ended and are shown without --all."""
_LONGEST_NODES = 24
_HEADS = ("OPERATION", "JOB", "NODES", "STATE", "PHASE", "DONE", "BEGUN", "TOOK", "BY", "WHAT CAME OF IT")
Summary = Mapping[str, Any]


def shown(operations: Sequence[Summary], *, everything: bool) -> list[Summary]:
    """Those that run, and the newest of the others.

    :param operations: from the oldest to the newest.
    """
    if everything:
        return list(operations)
    ended = [o["id"] for o in operations if o["standing"] not in (RUNNING, ELSEWHERE)]
    recent = set(ended[-_RECENT:])
    return [o for o in operations if o["standing"] in (RUNNING, ELSEWHERE) or o["id"] in recent]


def took_text(begun: str, ended: str | None, now: datetime) -> str:
    """From its begin to its end, or until now."""
    try:
        until = datetime.fromisoformat(ended) if ended else now
        seconds = max(0, round((until - datetime.fromisoformat(begun)).total_seconds()))
    except (ValueError, TypeError):
        return "-"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {seconds:02} s" if minutes else f"{seconds} s"


def done_text(progress: Mapping[str, Mapping[str, int]]) -> str:
    """Bytes of all nodes together."""
    total = sum(node["total_bytes"] for node in progress.values())
    if not total:
        return "-"
    return f"{sum(node['done_bytes'] for node in progress.values()) / total:.0%} of {size_text(total)}"


def _state(operation: Summary) -> str:
    code = operation["exit_code"]
    return f"{operation['standing']} ({code})" if code else str(operation["standing"])


def _result(operation: Summary) -> str:
    if operation["message"]:
        return " ".join(str(operation["message"]).split())
    return str(operation["snapshot"] or "-") if operation["standing"] == "ok" else "-"


def _row(operation: Summary, now: datetime) -> tuple[str, ...]:
    died = operation["standing"] == DIED
    return (
        operation["id"],
        operation["job"] or "-",
        cut(",".join(operation["nodes"]), _LONGEST_NODES) or "-",
        _state(operation),
        operation["phase"] or "-",
        done_text(operation["progress"]),
        operation["begun"] or "-",
        "-" if died else took_text(operation["begun"], operation["ended"], now),
        who_text(operation["who"]),
        _result(operation),
    )


def _of_nodes(operation: Summary) -> str:
    each = (f"{node} {done_text({node: done})}" for node, done in operation["progress"].items())
    return f"{operation['id']}: {', '.join(each)}"


def _found(state_dir: Path, job: str | None) -> list[Summary]:
    """From the oldest to the newest; a node's part only where the record of the whole is not."""
    folders = by_age(state_dir)
    names = {folder.name for folder in folders}
    found = [
        summary(folder)
        for folder in folders
        if not is_part(folder.name) or folder.name.partition(".")[0] not in names
    ]
    return [operation for operation in found if job is None or operation["job"] == job]


@command("status")
@settings_options()
@click.option("--job", help="Only operations on this job.")
@click.option("--all", "-a", "everything", is_flag=True, help="All that are kept, not only the newest.")
def status_command(context: Context, job: str | None, everything: bool) -> None:
    """List takes and restores: those that run, with phase and progress, and the last ones with outcome.

    STATE is `running`, `ok`, the code of the error with its exit status, `died` when the command ended
    without a word, or `elsewhere` when it was begun on another machine and has not ended.
    """
    context.store()
    operations = shown(_found(context.settings.state_dir, job), everything=everything)

    def text() -> None:
        now = datetime.now(UTC)
        print_table(_HEADS, [_row(operation, now) for operation in operations])
        for operation in operations:
            if operation["standing"] == RUNNING and len(operation["progress"]) > 1:
                click.echo(_of_nodes(operation))

    context.emit("status", {"operations": operations}, text)
    if not context.json and any(operation["standing"] == DIED for operation in operations):
        note("note: where a command has died, `cw-snapshot doctor` tells what it has left")
