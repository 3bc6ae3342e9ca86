"""The chunk broker over the wire: one answer for all nodes of a take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.storage.chunkids import ID_BYTES
from cw_snapshot.storage.interfaces import ChunkBroker, Claim

_CODES = {Claim.KNOWN: 0, Claim.PEER: 1, Claim.YOURS: 2}
_CLAIMS = {code: claim for claim, code in _CODES.items()}


class BrokerGoneError(CwError):
    """The coordinator went away while pages were stored; the job runs on.

    Fix: take again.
    """

    exit_code = ExitCode.LOST


class WireBroker:
    """A node's side: a `ChunkBroker` that asks the coordinator. Any thread may claim."""

    def __init__(self, send: Callable[[wire.FromNode], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[bytes]] = {}
        self._last = 0
        self._gone = False

    def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
        """:raises BrokerGoneError: no answer will come."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self._gone:
                raise BrokerGoneError()
            self._last += 1
            request = self._last
            self._waiting[request] = answer
        try:
            self._send(wire.FromNode(claim=wire.Claim(request=request, chunks=b"".join(ids))))
        except OSError as error:
            raise BrokerGoneError() from error
        return [_CLAIMS[code] for code in answer.result()]

    def answered(self, claims: wire.Claims) -> None:
        with self._lock:
            waiting = self._waiting.pop(claims.request, None)
        if waiting is not None:
            waiting.set_result(claims.answers)

    def gone(self) -> None:
        """No answer comes any more: everybody who waits is told."""
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for answer in waiting:
            answer.set_exception(BrokerGoneError())


def answer(broker: ChunkBroker, claim: wire.Claim) -> wire.Claims:
    """The coordinator's side."""
    chunks = claim.chunks
    ids = [chunks[at : at + ID_BYTES] for at in range(0, len(chunks), ID_BYTES)]
    return wire.Claims(request=claim.request, answers=bytes(_CODES[c] for c in broker.claim(ids)))
