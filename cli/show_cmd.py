"""`cw-snapshot show`: show what is in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.cli.list_cmd import describe
from cw_snapshot.cli.tables import cut, printable, size_text
from cw_snapshot.cli.take_report import compared_lines
from cw_snapshot.coordinator.redaction import Redactor
from cw_snapshot.coordinator.tree_document import tree_documents
from cw_snapshot.errors import ExitCode

_LONGEST_COMMAND = 100


def _print_process(process: Mapping[str, Any], children: Mapping[int, list[Any]], indent: str) -> None:
    memory = process["memory"]
    if process.get("zombie"):
        click.echo(f"{indent}{process['pid']} (zombie)")
        return
    words = " ".join(process.get("cmdline", [])) or process.get("comm", "?")
    words = printable(cut(words, _LONGEST_COMMAND))
    family = process.get("family_bytes", 0)
    shared = f", {size_text(family)} of it shared with its family" if family else ""
    click.echo(
        f"{indent}{process['pid']} {words}  [{size_text(memory['data_bytes'] + family)}{shared}, "
        f"{process.get('threads', '?')} threads, uid {process.get('uid', '?')}]"
    )
    for child in children.get(process["pid"], []):
        _print_process(child, children, indent + "  ")


def _print_tree(node: str, tree: Mapping[str, Any], *, environment: bool) -> None:
    facts = tree["platform"]
    click.echo(f"\nnode {node}: kernel {facts['kernel']}, criu {facts['criu']}")
    click.echo("processes")
    children: dict[int, list[Any]] = {}
    for process in tree["processes"]:
        children.setdefault(process["parent"], []).append(process)
    _print_process(tree["processes"][0], children, "  ")
    if environment:
        click.echo("environment of the root")
        for variable in tree["processes"][0]["environment"]:
            click.echo(f"  {printable(variable)}")
    written = [f for f in tree["files"] if f["flags"] & 3]
    click.echo(f"files: {len(tree['files'])} open or mapped, {len(written)} for writing")
    for file in written:
        mode = "append" if file["flags"] & 0o2000 else "write"
        carried = ", carried in the snapshot" if file["carried"] else ""
        click.echo(f"  {printable(file['path'])}  [{mode}, {size_text(file['size'])}{carried}]")
    click.echo(f"sockets: {len(tree['sockets'])}")
    for socket in tree["sockets"]:
        if socket["kind"] != "unix":
            peer = f" -> {socket['remote']}" if socket["remote"] else ""
            click.echo(printable(f"  {socket['kind']} {socket['state']} {socket['local']}{peer}".rstrip()))


@command("show", ExitCode.NOT_FOUND, ExitCode.INTEGRITY, ExitCode.UNREACHABLE)
@settings_options("repository")
@click.option("--environment", is_flag=True, help="Also the environment of the job's root.")
@click.option("--secrets", is_flag=True, help="Show values that look secret too.")
@click.argument("snapshot", metavar="SNAP")
def show_command(context: Context, environment: bool, secrets: bool, snapshot: str) -> None:
    """Show what is in SNAP: processes, memory, files and sockets.

    Values that look secret in environments and command lines are hidden.
    """
    repository = context.repository()
    commit = repository.read_commit(repository.find(snapshot))
    trees = tree_documents(repository, commit, None if secrets else Redactor())

    def text() -> None:
        click.echo(f"{commit.snapshot} of job {commit.job}, incarnation {commit.incarnation}")
        click.echo(
            f"taken {commit.created:%Y-%m-%d %H:%M:%S} UTC"
            + (f", named {commit.name}" if commit.name else "")
        )
        for line in compared_lines(commit.summary.get("take", {}).get("compared", {})):
            click.echo(line)
        for node, tree in trees.items():
            _print_tree(node, tree, environment=environment)

    context.emit("show", {**describe(commit), "trees": trees}, text)
