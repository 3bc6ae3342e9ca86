"""`cw-snapshot lab`: a virtual cluster on one machine."""

from __future__ import annotations

import os
from typing import Any

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.cli.tables import print_table
from cw_snapshot.coordinator.state import require_root
from cw_snapshot.errors import ExitCode, UsageError
from cw_snapshot.lab import labs, namespaces, network
from cw_snapshot.lab.labs import Lab

_lab_option = click.option("--lab", "name", default="lab", show_default=True, help="Name of the lab.")


class _LabGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("EXIT STATUS"):
            formatter.write_text("See the help of each command: `cw-snapshot lab COMMAND --help`.")


@click.group("lab", cls=_LabGroup)
def lab_command() -> None:
    """A virtual cluster on this machine: namespaces as nodes, with links that can be cut.

    \b
    cw-snapshot lab up --nodes 4 --nics 2
    cw-snapshot lab exec n1 -- ping -c 1 10.71.0.2
    cw-snapshot lab cut n1 eth0
    cw-snapshot lab down
    """


@command("up", ExitCode.REFUSED)
@settings_options()
@_lab_option
@click.option("--nodes", default=2, show_default=True, help="How many nodes: n1, n2, …")
@click.option("--nics", default=2, show_default=True, help="NICs of each node: eth0, eth1, …")
def up_command(context: Context, name: str, nodes: int, nics: int) -> None:
    """Make a lab. One that is up already, with the same shape, is left as it is."""
    require_root()
    lab, made = labs.up(name, nodes, nics)
    document = {**_describe(lab), "made": made}
    context.emit("lab-up", document, lambda: _print_nodes([document]))


@command("status", ExitCode.NOT_FOUND)
@settings_options()
@click.option("--lab", "name", help="Only this lab.")
def status_command(context: Context, name: str | None) -> None:
    """Show the labs, their nodes, and how their links stand."""
    require_root()
    found = [labs.find(name)] if name is not None else labs.every()
    documents = [_describe(lab) for lab in found]
    context.emit("lab-status", {"labs": documents}, lambda: _print_nodes(documents))


@command("down", ExitCode.NOT_FOUND)
@settings_options()
@_lab_option
def down_command(context: Context, name: str) -> None:
    """Kill everything that runs in a lab, and remove it."""
    require_root()
    labs.down(name)
    context.emit("lab-down", {"lab": name}, lambda: click.echo(f"lab {name} is down"))


@command("exec", ExitCode.NOT_FOUND)
@_lab_option
@click.argument("node")
@click.argument("words", metavar="CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(name: str, node: str, words: tuple[str, ...]) -> None:
    """Run a command on a node; ends with the status of that command."""
    require_root()
    enter = namespaces.entering(labs.find(name).node(node).namespace)
    try:
        os.execvp(enter[0], [*enter, *words])
    except OSError as error:
        raise UsageError(what=f"{enter[0]} can't be started: {error.strerror}") from error


@command("cut", ExitCode.NOT_FOUND)
@settings_options()
@_lab_option
@click.option("--silent", is_flag=True, help="Drop every frame, but leave the carrier.")
@click.argument("node")
@click.argument("nic")
def cut_command(context: Context, name: str, silent: bool, node: str, nic: str) -> None:
    """Cut the link of one NIC, as if its cable were pulled."""
    require_root()
    lab = labs.find(name)
    network.cut(lab.plan, lab.node(node), nic, silent=silent)
    how = network.Link.SILENT if silent else network.Link.CUT
    document = {"lab": name, "node": node, "nic": nic, "link": how.value}
    context.emit("lab-link", document, lambda: click.echo(f"{node} {nic}: {how}"))


@command("mend", ExitCode.NOT_FOUND)
@settings_options()
@_lab_option
@click.argument("node")
@click.argument("nic")
def mend_command(context: Context, name: str, node: str, nic: str) -> None:
    """Undo a cut."""
    require_root()
    lab = labs.find(name)
    network.mend(lab.plan, lab.node(node), nic)
    document = {"lab": name, "node": node, "nic": nic, "link": network.Link.UP.value}
    context.emit("lab-link", document, lambda: click.echo(f"{node} {nic}: {network.Link.UP}"))


def _describe(lab: Lab) -> dict[str, Any]:
    links = network.links(lab.plan)
    return {
        "lab": lab.name,
        "nodes": [
            {
                "node": node.name,
                "address": node.address,
                "nics": [nic.to_json() for nic in network.nics(node, links)],
                "processes": len(namespaces.processes([node.namespace])),
            }
            for node in lab.plan.members
        ],
    }


def _print_nodes(documents: list[dict[str, Any]]) -> None:
    rows = [
        (
            lab["lab"],
            node["node"],
            node["address"],
            nic["nic"],
            nic["ipv4"],
            nic["ipv6"],
            nic["link"],
            str(node["processes"]),
        )
        for lab in documents
        for node in lab["nodes"]
        for nic in node["nics"]
    ]
    print_table(("LAB", "NODE", "MANAGEMENT", "NIC", "IPV4", "IPV6", "LINK", "PROCESSES"), rows)


for _command in (up_command, status_command, down_command, exec_command, cut_command, mend_command):
    lab_command.add_command(_command)
