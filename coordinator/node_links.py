"""The coordinator's ends of one operation: a stream to each node, one inbox for all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import grpc

from cw_snapshot.coordinator.barrier import Phase
from cw_snapshot.coordinator.cluster import AgentClient
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire_broker import answer
from cw_snapshot.errors import CwError
from cw_snapshot.storage.interfaces import ChunkBroker


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream of a node has ended."""

    error: CwError | None
    """Why, if not in good order."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Something came from a node."""

    node: str
    what: wire.Vote | wire.Progress | Ended


class NodeLinks:
    """Streams to all nodes of an operation, by the names that the barrier has for them: a node that has
    several trees of the job gets a stream for each. Claims of chunks are answered as they come."""

    def __init__(
        self, clients: Mapping[str, AgentClient], begins: Mapping[str, wire.Begin], broker: ChunkBroker
    ) -> None:
        self.inbox: queue.Queue[Arrived] = queue.Queue()
        self._epoch = next(iter(begins.values())).epoch
        self._broker = broker
        self._outboxes: dict[str, queue.Queue[wire.ToNode | None]] = {}
        self._threads = []
        for member, client in clients.items():
            outbox: queue.Queue[wire.ToNode | None] = queue.Queue()
            outbox.put(wire.ToNode(begin=begins[member]))
            self._outboxes[member] = outbox
            thread = threading.Thread(
                target=self._listen, args=(member, client, outbox), name=member, daemon=True
            )
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def tell(self, phase: Phase) -> None:
        """A phase, to every node."""
        command = wire.ToNode(command=wire.Command(epoch=self._epoch, phase=phase.value))
        for outbox in self._outboxes.values():
            outbox.put(command)

    def finish(self, *, durable: bool) -> None:
        """The end in good order, to every node."""
        for outbox in self._outboxes.values():
            outbox.put(wire.ToNode(finish=wire.Finish(durable=durable)))

    def close(self) -> None:
        """No more is said; a node that has not finished lets its tree go."""
        for outbox in self._outboxes.values():
            outbox.put(None)

    def _listen(self, member: str, client: AgentClient, outbox: queue.Queue[wire.ToNode | None]) -> None:
        error: CwError | None = None
        try:
            for message in client.operate(_until_none(outbox)):
                kind = message.WhichOneof("body")
                if kind == "vote":
                    self.inbox.put(Arrived(member, message.vote))
                elif kind == "progress":
                    self.inbox.put(Arrived(member, message.progress))
                elif kind == "claim":
                    outbox.put(wire.ToNode(claims=answer(self._broker, message.claim)))
        except grpc.RpcError as failure:
            error = client.told(failure)
        self.inbox.put(Arrived(member, Ended(error)))


def _until_none(outbox: queue.Queue[wire.ToNode | None]) -> Iterator[wire.ToNode]:
    while (message := outbox.get()) is not None:
        yield message
