"""What ranks say to each other while they are taken, and after they came back elsewhere: no byte of TCP is
lost, doubled or a stranger's, and remembered addresses lead to where the other is now."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cw_snapshot.lab import namespaces
from cw_snapshot.lab.labs import Lab
from tests.engine import Engine, eventually
from tests.lab.conftest import MakeLab

pytestmark = [pytest.mark.lab, pytest.mark.root]

TRAFFIC = Path(__file__).parents[1] / "jobs" / "traffic.py"
STRANGER = """
import socket
with socket.create_server(("", 9000)) as server:
    server.accept()
    print("somebody came", flush=True)
"""


class Talk:
    """The job, and what it says of its connections."""

    def __init__(self, engine: Engine, lab: Lab) -> None:
        self.engine, self.lab = engine, lab
        engine.environment["CW_SNAPSHOT_CLUSTER"] = str(lab.cluster_file)
        self.folder = engine.folder / "talk"
        self.folder.mkdir()
        self.connections = ["0", "udp"]

    def start(self, nodes: str) -> None:
        command = (sys.executable, "-u", TRAFFIC, self.folder)
        self.engine.ok("run", "--job-id", "talk", "--nodes", nodes, "--", *command)
        self.flows()

    def lines(self) -> list[str]:
        paths = sorted(self.lab.folder.glob("nodes/*/trees/*/jobs/talk/*/output.log"))
        return [line for path in paths for line in path.read_text().splitlines()]

    def flows(self) -> None:
        """Wait until numbers have come over every connection, on both sides, since now."""
        before = Counter(self.lines())

        def done() -> bool:
            new = list((Counter(self.lines()) - before).elements())
            assert not [line for line in new if line.startswith("ERROR")], new
            moving = Counter(line.rpartition(" ")[0] for line in set(new))
            return all(moving[f"{rank} {name}"] >= 3 for rank in (0, 1) for name in self.connections)

        try:
            eventually("numbers come over every connection", done, 40)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.lines()[-20:]])) from error

    def dial(self, name: str) -> None:
        """One more connection, to the address that the job remembers."""
        (self.folder / f"dial.{name}").touch()
        self.connections.append(name)
        self.flows()

    def take(self) -> str:
        snapshot: str = self.engine.ok("take", "talk", "--json").json["snapshot"]
        self.flows()
        return snapshot

    def kill(self) -> None:
        self.engine.ok("stop", "talk", "--grace", "0s")

    def restore(self, snapshot: str, nodes: str) -> None:
        self.engine.ok("restore", snapshot, "--nodes", nodes)
        self.flows()

    def move(self, nodes: str) -> str:
        """Take, kill, restore there."""
        snapshot = self.take()
        self.kill()
        self.restore(snapshot, nodes)
        return snapshot

    def tables(self) -> list[str]:
        """Of old addresses, on all nodes."""
        found = []
        for node in self.lab.plan.members:
            listed = namespaces.run([*namespaces.entering(node.namespace), "nft", "list", "tables"])
            found += [f"{node.name} {line}" for line in listed.splitlines() if "cw-snapshot" in line]
        return found


@pytest.fixture
def talk(engine: Engine, make_lab: MakeLab) -> Talk:
    return Talk(engine, make_lab(nodes=4, nics=1))


def test_taken_in_full_flow(talk: Talk) -> None:
    """Often, without a restore: nothing is lost to a take."""
    talk.start("n1,n2")
    for _ in range(5):
        talk.take()


def test_elsewhere_and_back(talk: Talk) -> None:
    talk.start("n1,n2")
    first = talk.take()
    talk.kill()
    stranger = [*namespaces.entering(talk.lab.node("n1").namespace), sys.executable, "-c", STRANGER]
    with subprocess.Popen(stranger, stdout=subprocess.PIPE) as at_old_address:
        try:
            talk.restore(first, "n3,n4")
            talk.dial("1")
            talk.move("n3,n4")  # the same nodes again, which remember how they led connections
            talk.dial("2")
            talk.move("n4,n3")
            talk.dial("3")
        finally:
            at_old_address.kill()
        assert at_old_address.stdout is not None
        assert at_old_address.stdout.read() == b""
    talk.move("n2,n3")
    talk.dial("4")
    talk.kill()
    assert not talk.tables()
    talk.connections = ["0", "udp"]
    talk.restore(first, "n1,n2")
    talk.kill()
    assert not talk.tables()
