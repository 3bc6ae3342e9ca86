"""Labs of real namespaces."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cw_snapshot.lab import labs, namespaces, network
from cw_snapshot.lab.labs import Lab, LabDiffersError, LabNotFoundError, NodeNotFoundError
from cw_snapshot.lab.network import Link, NoSuchNicError
from tests.engine import eventually
from tests.lab.conftest import MakeLab

pytestmark = [pytest.mark.lab]

_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2]))"
_LISTEN = """
import socket
server = socket.create_server(("::", 7), family=socket.AF_INET6, dualstack_ipv6=True)
print("on", flush=True)
while True:
    server.accept()[0].close()
"""


def on(lab: Lab, node: str, *words: str) -> list[str]:
    return [*namespaces.entering(lab.node(node).namespace), *words]


class Listener:
    """Something that can be connected to, on a node."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.process = subprocess.Popen(
            on(lab, node, sys.executable, "-c", _LISTEN), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "on\n"


def reaches(lab: Lab, node: str, address: str, seconds: float = 5) -> bool:
    command = on(lab, node, sys.executable, "-c", _CONNECT, address, str(seconds))
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def carrier(lab: Lab, node: str, nic: str) -> str:
    shown = subprocess.run(
        on(lab, node, "ip", "-o", "link", "show", nic), capture_output=True, text=True, check=True
    )
    return "lost" if "NO-CARRIER" in shown.stdout else "there"


def test_nodes_reach_each_other_on_every_nic(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=3, nics=2)
    Listener(lab, "n2")
    for port in lab.node("n2").nics:
        assert reaches(lab, "n1", str(port.ipv4.ip))
        assert reaches(lab, "n3", str(port.ipv6.ip))
    # From the host only the management network: that is where the agents are.
    with socket.create_connection((lab.node("n2").address, 7), timeout=5):
        pass


def test_a_cut_is_noticed_and_mended(make_lab: MakeLab) -> None:
    lab = make_lab()
    Listener(lab, "n2")
    first, second = (str(port.ipv4.ip) for port in lab.node("n2").nics)
    network.cut(lab.plan, lab.node("n2"), "eth0", silent=False)
    assert carrier(lab, "n2", "eth0") == "lost"
    assert not reaches(lab, "n1", first, 0.3)
    assert reaches(lab, "n1", second)
    assert reaches(lab, "n1", lab.node("n2").address)
    assert network.nics(lab.node("n2"), network.links(lab.plan))[0].link is Link.CUT
    network.mend(lab.plan, lab.node("n2"), "eth0")
    assert reaches(lab, "n1", first)


def test_a_silent_cut_leaves_the_carrier(make_lab: MakeLab) -> None:
    lab = make_lab()
    Listener(lab, "n2")
    first, second = (str(port.ipv4.ip) for port in lab.node("n2").nics)
    network.cut(lab.plan, lab.node("n1"), "eth0", silent=True)
    assert carrier(lab, "n1", "eth0") == "there"
    assert not reaches(lab, "n1", first, 0.3)
    assert reaches(lab, "n1", second)
    assert network.nics(lab.node("n1"), network.links(lab.plan))[0].link is Link.SILENT
    network.mend(lab.plan, lab.node("n1"), "eth0")
    assert reaches(lab, "n1", first)


def test_the_management_nic_is_not_cut(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=1)
    with pytest.raises(NoSuchNicError):
        network.cut(lab.plan, lab.node("n1"), "mgmt0", silent=False)
    with pytest.raises(NodeNotFoundError):
        lab.node("n2")


def test_several_labs_have_different_addresses(make_lab: MakeLab) -> None:
    one, other = make_lab(suffix="a"), make_lab(suffix="b")
    assert one.plan.block != other.plan.block
    Listener(one, "n2")
    assert not reaches(other, "n1", str(one.node("n2").nics[0].ipv4.ip), 0.3)


def test_addresses_that_the_host_uses_are_left_alone(make_lab: MakeLab) -> None:
    lab = make_lab()
    assert IPv4Network(f"10.{lab.plan.block}.255.0/24") in set(network.networks_in_use())
    labs.down(lab.name)
    assert lab.plan.block == make_lab().plan.block
    labs.down(lab.name)
    namespaces.ip("route", "add", "blackhole", f"10.{lab.plan.block}.9.0/24")
    try:
        assert make_lab().plan.block != lab.plan.block
    finally:
        namespaces.ip("route", "delete", "blackhole", f"10.{lab.plan.block}.9.0/24")


def test_down_leaves_nothing(make_lab: MakeLab) -> None:
    lab = make_lab()
    listener = Listener(lab, "n1")
    labs.down(lab.name)
    assert listener.process.wait(5) == -signal.SIGKILL
    assert network.namespaces_of(lab.name) == []
    assert not lab.folder.exists()
    assert lab.plan.host_interface not in namespaces.ip("link", "show")
    with pytest.raises(LabNotFoundError):
        labs.find(lab.name)
    with pytest.raises(LabNotFoundError):
        labs.down(lab.name)


def test_up_again(make_lab: MakeLab) -> None:
    lab = make_lab(nodes=2)
    inode = (namespaces.FOLDER / lab.node("n1").namespace).stat().st_ino
    again, made = labs.up(lab.name, 2, 2)
    assert not made
    assert again == lab
    assert (namespaces.FOLDER / lab.node("n1").namespace).stat().st_ino == inode
    with pytest.raises(LabDiffersError):
        labs.up(lab.name, 3, 2)


def test_up_after_something_was_lost(make_lab: MakeLab) -> None:
    lab = make_lab()
    namespaces.delete([lab.node("n2").namespace])
    again, made = labs.up(lab.name, 2, 2)
    assert made
    Listener(again, "n2")
    assert reaches(again, "n1", str(again.node("n2").nics[0].ipv4.ip))


_UP = "import sys; from cw_snapshot.lab import labs; labs.up(sys.argv[1], 6, 2)"


@pytest.mark.parametrize("milliseconds", [0, 20, 40, 60, 90, 130])
def test_up_and_down_after_a_killed_up(make_lab: MakeLab, milliseconds: int) -> None:
    """At whatever moment it was killed."""
    name = make_lab(nodes=1).name
    labs.down(name)
    killed = subprocess.Popen([sys.executable, "-c", _UP, name])
    eventually("it has begun", lambda: network.namespaces_of(name) or killed.poll() is not None)
    time.sleep(milliseconds / 1000)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    if milliseconds % 40:
        lab = labs.up(name, 6, 2)[0]
        Listener(lab, "n6")
        assert reaches(lab, "n1", str(lab.node("n6").nics[0].ipv4.ip))
    else:
        labs.down(name)
        assert network.namespaces_of(name) == []


def test_a_record_of_another_version_is_made_anew(make_lab: MakeLab) -> None:
    lab = make_lab()
    (lab.folder / "lab.json").write_text('{"schema": "cw-snapshot/lab/0"}')
    assert labs.up(lab.name, 2, 2)[1]


def test_the_folder_is_private(make_lab: MakeLab) -> None:
    assert make_lab().folder.stat().st_mode & 0o777 == 0o700
    assert Path(labs.FOLDER).stat().st_mode & 0o077 == 0
