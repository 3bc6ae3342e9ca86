"""What a caller brings: sources and sinks of pages, and the broker that shares out chunks.

Everything stored is a *stream*: a named sparse range of pages addressed by byte offset. For a
process the addresses are its virtual addresses; for a file they are file offsets, with the last
page padded with zeros and the real size recorded beside the stream. A page is *data*, *ZERO*
(present and all zero: it costs no storage but is recorded, because pouring may have to write
zeros over something else) or *absent* (not listed at all).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from cw_snapshot.storage.pages import Bytes


class PageSource(Protocol):
    """Pages to store, for example the memory of one stopped process.

    All three methods may block and may raise; whatever they raise ends the whole operation and
    reaches the caller of it unchanged.
    """

    def runs(self) -> Sequence[tuple[int, int]]:
        """The pages that are present, as (start address, bytes).

        Multiples of 4096, ascending, not overlapping. Called once, first. Runs that touch are
        treated as one.
        """
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` (whole pages, within one run) with the bytes at `start`, wholly, or raise.

        Thread-safe. Called in ascending order, once for each byte. What `buffer` held before is
        undefined, so a short read that is not raised becomes wrong memory in a snapshot.
        """
        ...

    def finish(self) -> None:
        """Called once, after the last `read_into`: raise if what was read can't be trusted.

        For example because the process died while it was read. The stream counts only after this
        has returned; the source is not used afterwards.
        """
        ...


class PageSink(Protocol):
    """Where the pages of one stream go, for example the memory of a held process.

    Both methods are thread-safe and are called out of order, each page at most once. If one
    raises, the pour stops and its caller gets that error.
    """

    def write(self, start: int, parts: Sequence[Bytes]) -> None:
        """Write `parts` (whole pages each), one behind the other, at address `start`.

        They must not be kept after returning. The last page of a file is padded with zeros: a
        sink for a file cuts it to the stream's size.
        """
        ...

    def zero(self, start: int, nbytes: int) -> None:
        """Make `nbytes` bytes (whole pages) at `start` read as zeros."""
        ...


class Claim(Enum):
    """A broker's answer for one chunk."""

    KNOWN = "known"
    """The repository holds it already."""
    PEER = "peer"
    """Somebody in this operation (perhaps the asker itself, earlier) stores it."""
    YOURS = "yours"
    """The asker has to store it."""


class ChunkBroker(Protocol):
    """Decides who stores which chunk during one operation.

    For every id, exactly one asker of the operation ever gets YOURS, and none does when the
    repository holds the chunk. If the one that got YOURS fails, the operation fails: there is no
    commit, so nobody relies on the missing chunk. A broker is made for one operation and not
    used again.
    """

    def claim(self, ids: Sequence[bytes]) -> Sequence[Claim]:
        """One answer per id (32 bytes each), in order. Thread-safe.

        `ids` may hold the same id twice: then at most the first of them is YOURS.
        """
        ...
