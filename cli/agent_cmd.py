"""`cw-snapshot agent`: the daemon of a node."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from cw_snapshot.cli.command import Context, command, settings_options
from cw_snapshot.errors import ExitCode

_file = click.Path(path_type=Path)


@command("agent", ExitCode.REFUSED)
@settings_options("threads", "limit_memory")
@click.option("--node", required=True, help="Name of this node in the cluster; its certificate has it too.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Address to listen on.")
@click.option("--authority", required=True, type=_file, help="Certificate of the cluster's authority.")
@click.option("--certificate", required=True, type=_file, help="Certificate of this node.")
@click.option("--key", required=True, type=_file, help="Its private key.")
def agent_command(
    context: Context, node: str, listen: str, authority: Path, certificate: Path, key: Path
) -> None:
    """Serve the coordinator on this node, until SIGTERM.

    Only over mutual TLS, and only callers whose certificate names them cw-snapshot-coordinator.
    `ready` is printed when it listens.
    """
    from cw_snapshot.coordinator.agent import Agent, serve
    from cw_snapshot.coordinator.tls import Identity

    context.store()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = serve(
        Agent(node, context.settings),
        listen,
        Identity(authority, certificate, key),
        lambda: click.echo("ready"),
    )
    ended.wait()
    # Operations under way lose their coordinator: each lets its tree go.
    server.stop(grace=None).wait()
