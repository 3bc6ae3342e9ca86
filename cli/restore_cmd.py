"""`cw-snapshot restore`: bring a job back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cw_snapshot.cli.command import Command, Context, absolute, command, note, settings_options
from cw_snapshot.cli.progress import RestoreDisplay
from cw_snapshot.cli.tables import printable, size_text
from cw_snapshot.coordinator.cluster_restore import ClusterRestoreRequest
from cw_snapshot.coordinator.restore import RestoreReport, RestoreRequest, restore
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.snapshot.file_rules import Act, FilePolicy
from cw_snapshot.storage.repository import Repository


def parse_files(text: str) -> tuple[FilePolicy, Path | None]:
    """The value of --files: `rewind`, `keep` or `redirect=DIR`.

    :raises ValueError: for anything else.
    """
    word, _, folder = text.partition("=")
    policy = FilePolicy(word)
    if (policy is FilePolicy.REDIRECT) != bool(folder):
        raise ValueError(text)
    return policy, absolute(Path(folder)) if folder else None


class _FilesPolicy(click.ParamType[tuple[FilePolicy, Path | None]]):
    name = "POLICY"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[FilePolicy, Path | None]:
        try:
            return parse_files(value)
        except ValueError:
            self.fail(f"{value!r} is not rewind, keep or redirect DIR", param, ctx)


class _RestoreCommand(Command):
    """Takes `--files redirect DIR`, where the option has two words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, join_redirect(args))


def join_redirect(args: list[str]) -> list[str]:
    """Write `--files redirect DIR` as `--files redirect=DIR`."""
    for index, word in enumerate(args[:-2]):
        if word == "--files" and args[index + 1] == "redirect" and not args[index + 2].startswith("-"):
            return [*args[:index], "--files", f"redirect={args[index + 2]}", *args[index + 3 :]]
    return args


def _print_plan(report: RestoreReport) -> None:
    click.echo(f"{report.snapshot} of job {report.job} can be restored here")
    for finding in report.findings:
        click.echo(f"  warning: {finding}")
    for decision in report.files:
        if decision.act is not Act.USE:
            why = f" ({decision.why})" if decision.why else ""
            click.echo(printable(f"  {decision.act.value:<12} {decision.record.path}{why}"))


def _print_report(report: RestoreReport) -> None:
    click.echo(
        f"job {report.job} runs again as incarnation {report.incarnation}, pid {report.pid}, log {report.log}"
    )
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.times.items())
    click.echo(f"  {size_text(report.poured_bytes)} restored: {parts}")


@command(
    "restore",
    ExitCode.REFUSED,
    ExitCode.ABORTED,
    ExitCode.NOT_FOUND,
    ExitCode.INTEGRITY,
    ExitCode.UNREACHABLE,
    cls=_RestoreCommand,
    meanings={
        ExitCode.REFUSED: "refused before anything was made",
        ExitCode.ABORTED: "failed or interrupted; what had been made was removed",
    },
)
@settings_options("repository", "threads")
@click.option(
    "--files",
    type=_FilesPolicy(),
    metavar="rewind|keep|redirect DIR",
    help="What to do with writable files that have changed: cut back (the tail is saved beside the "
    "file), keep as they are, or give the job copies in DIR. Without it they are a refusal.",
)
@click.option("--plan", is_flag=True, help="Only tell what would happen.")
@click.option("--nodes", metavar="A,B", help="Restore on these nodes of the cluster.")
@click.option(
    "--assume-dead",
    multiple=True,
    metavar="NODE",
    help="The job does not run on this node, which can't be asked; may be repeated.",
)
@click.argument("snapshot", metavar="SNAP")
def restore_command(
    context: Context,
    files: tuple[FilePolicy, Path | None] | None,
    plan: bool,
    nodes: str | None,
    assume_dead: tuple[str, ...],
    snapshot: str,
) -> None:
    """Bring a job back from SNAP, at exactly the step where it was.

    SNAP is an id or a unique beginning of one, a name, or latest:JOB. The job keeps its id. Files
    opened for appending keep their later lines; every other file must be what it was.
    """
    store, repository = context.store(), context.repository()
    policy, folder = files or (FilePolicy.REFUSE, None)
    if nodes is None and assume_dead:
        raise UsageError(what="--assume-dead is about the nodes of a cluster; give --nodes too")
    if nodes is not None:
        _on_nodes(
            context,
            ClusterRestoreRequest(repository.find(snapshot), nodes.split(","), policy, folder, assume_dead),
            repository,
            plan_only=plan,
        )
        return
    request = RestoreRequest(repository.find(snapshot), policy, folder)
    with RestoreDisplay() as display:
        report = restore(request, store, repository, context.settings, display, plan_only=plan)
    if plan:
        context.emit("restore-plan", report.to_json(), lambda: _print_plan(report))
        return
    for line in report.notes:
        note(f"note: {line}")
    context.emit("restore", report.to_json(), lambda: _print_report(report))


def _on_nodes(
    context: Context, request: ClusterRestoreRequest, repository: Repository, *, plan_only: bool
) -> None:
    from cw_snapshot.coordinator import cluster_restore

    report = cluster_restore.restore(
        request,
        context.cluster(),
        repository,
        context.settings.repository or "",
        context.settings,
        lambda *_: None,
        plan_only=plan_only,
    )

    def text() -> None:
        verb = "can be restored" if plan_only else f"runs again as incarnation {report.incarnation}"
        click.echo(f"{report.snapshot}: job {report.job} {verb}")
        for tree in report.trees:
            moved = ", ".join(f"{old} -> {new}" for old, new in tree["addresses"].items())
            click.echo(f"  tree {tree['tree']}: {tree['from']} -> {tree['to']} ({moved})")

    context.emit("restore-plan" if plan_only else "restore", report.to_json(), text)
