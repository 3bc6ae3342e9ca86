"""What goes over the wire between coordinator, agents and workers."""

from __future__ import annotations

import socket
import threading
from importlib import resources
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from cw_snapshot.coordinator.state import BusyError
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import frames, remote_errors
from cw_snapshot.coordinator.wire.frames import Frames
from cw_snapshot.coordinator.wire_broker import BrokerGoneError, WireBroker, answer
from cw_snapshot.errors import ExitCode, InternalError
from cw_snapshot.storage.chunkids import ID_BYTES
from cw_snapshot.storage.interfaces import Claim

PROTO = Path(__file__).parents[3] / "coordinator" / "wire"


def test_the_generated_code_is_that_of_the_schema(tmp_path: Path) -> None:
    """Else: scripts/generate-protocol."""
    target = tmp_path / "set"
    included = resources.files(grpc_tools) / "_proto"
    words = ["protoc", f"-I{PROTO}", f"-I{included}", f"--descriptor_set_out={target}", "agent.proto"]
    assert protoc.main(words) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file[0]
    generated = descriptor_pb2.FileDescriptorProto.FromString(wire.DESCRIPTOR.serialized_pb)
    assert _text(compiled) == _text(generated)


def _text(descriptor: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """Without the JSON names, which protoc derives, and writes to a file only."""
    return [line for line in str(descriptor).splitlines() if "json_name" not in line]


def test_frames() -> None:
    one, other = map(Frames, socket.socketpair())
    sent = [wire.FromNode(vote=wire.Vote(epoch=n, phase="stop", yes=True)) for n in range(100)]
    thread = threading.Thread(target=lambda: [one.send(message) for message in sent] and one.end())
    thread.start()
    got = []
    while (message := other.receive(wire.FromNode())) is not None:
        got.append(message)
    thread.join()
    assert got == sent


@pytest.mark.parametrize("data", [b"\x05", b"\x05\0\0\0ab", b"\xff\xff\xff\xff"])
def test_a_frame_that_ends_in_its_middle_is_an_end(data: bytes) -> None:
    near, far = socket.socketpair()
    near.sendall(data)
    near.close()
    assert Frames(far).receive(wire.FromNode()) is None


def test_a_frame_of_the_largest_size_is_not_waited_for() -> None:
    near, far = socket.socketpair()
    near.sendall((frames.LONGEST + 1).to_bytes(4, "little"))
    assert Frames(far).receive(wire.FromNode()) is None


def test_an_error_over_the_wire() -> None:
    error = BusyError(job="llama", evidence=["pid 7"])
    found = remote_errors.from_text(remote_errors.to_text(error), "n1")
    assert found.message == f"n1: {error.message}"
    assert (found.code, found.exit_code, found.fix) == ("busy", ExitCode.REFUSED, error.fix)
    assert found.evidence == ["pid 7"]
    assert remote_errors.from_text(remote_errors.to_text(OSError(28, "full", "/x")), "n1").evidence == ["/x"]
    assert isinstance(remote_errors.from_text("nonsense", "n1"), InternalError)
    assert isinstance(remote_errors.from_text("{}", "n1"), InternalError)


class Broker:
    """Knows chunk 0, has chunk 1 promised to somebody else."""

    def claim(self, ids: list[bytes]) -> list[Claim]:
        answers = {0: Claim.KNOWN, 1: Claim.PEER}
        return [answers.get(chunk[0], Claim.YOURS) for chunk in ids]


def test_claims() -> None:
    def send(message: wire.FromNode) -> None:
        node.answered(answer(Broker(), message.claim))

    node = WireBroker(send)
    ids = [bytes([n]) * ID_BYTES for n in range(4)]
    assert list(node.claim(ids)) == [Claim.KNOWN, Claim.PEER, Claim.YOURS, Claim.YOURS]
    assert list(node.claim([])) == []


def test_who_waits_for_a_claim_is_told_that_nobody_will_answer() -> None:
    asked = threading.Event()
    node = WireBroker(lambda message: asked.set())
    errors = []

    def claim() -> None:
        try:
            node.claim([bytes(ID_BYTES)])
        except BrokerGoneError as error:
            errors.append(error)

    waiting = threading.Thread(target=claim)
    waiting.start()
    asked.wait(5)
    node.gone()
    waiting.join(5)
    assert len(errors) == 1
    with pytest.raises(BrokerGoneError):
        node.claim([bytes(ID_BYTES)])
