"""Starting the criu that dumps one tree: in its namespaces, with our library and its descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.criu_session import CriuSession, start_criu
from cw_snapshot.snapshot.dump_options import dump_environment, dump_options
from cw_snapshot.snapshot.entering import Entrance
from cw_snapshot.snapshot.native import plugin_path
from cw_snapshot.snapshot.tree import Member


def start_dump(
    root: Member,
    criu: Criu,
    way: Entrance,
    folder: Path,
    *,
    journal: int,
    flags: int,
    hold: socket.socket,
    log_level: int,
    started: Callable[[int], None],
) -> CriuSession:
    """Start criu and ask it for a dump; it does nothing to the job before its first callback is answered.

    :param folder: where its images and log go.
    :param journal: descriptor of the shadow journal.
    :param flags: descriptor of the table of mapping flags.
    :param hold: the plugin's end of the hold socket.
    :param started: told the pid of criu's process group before criu is asked for anything.
    """
    images_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        session = start_criu(
            way.command(criu, plugin_path()),
            environment=way.environment(folder)
            | dump_environment(journal=journal, flags=flags, hold=hold.fileno()),
            pass_fds=[images_fd, journal, flags, hold.fileno()],
            what="dump the job",
            log=folder / "dump.log",
        )
        started(session.pid)
        unprivileged = way.as_user
        session.request("DUMP", dump_options(root, images_fd, unprivileged=unprivileged, log_level=log_level))
        return session
    finally:
        os.close(images_fd)
