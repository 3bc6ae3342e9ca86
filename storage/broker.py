"""The broker of an operation that runs on one node alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cw_snapshot.storage.chunkids import ids_from_list
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.interfaces import Claim


class LocalBroker:
    """A `ChunkBroker` that answers from an index and from what it has given away itself."""

    def __init__(self, index: ChunkIndex) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._claimed: set[bytes] = set()

    def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
        known = self._index.contains(ids_from_list(ids)).tolist()
        answers = []
        with self._lock:
            for chunk, is_known in zip(ids, known, strict=True):
                if is_known:
                    answers.append(Claim.KNOWN)
                elif chunk in self._claimed:
                    answers.append(Claim.PEER)
                else:
                    self._claimed.add(chunk)
                    answers.append(Claim.YOURS)
        return answers
