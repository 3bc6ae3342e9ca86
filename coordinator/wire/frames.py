"""Messages on a socket between an agent and the worker of one operation: 4 bytes of length, little
endian, then the message."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Protocol, TypeVar

_LENGTH = struct.Struct("<I")
LONGEST = 64 << 20
"""Bytes of a message. The longest are claims: 32 bytes for each chunk of a batch."""


class Message(Protocol):
    """What the generated classes have."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


_M = TypeVar("_M", bound="Parsed")


class Parsed(Protocol):
    def ParseFromString(self, data: bytes) -> int: ...  # noqa: N802


class Frames:
    """One end of such a socket. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """:raises OSError: the other end is gone."""
        data = message.SerializeToString()
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, message: _M) -> _M | None:
        """The next message, parsed into `message`; None at the end, also at one in its middle."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        data = self._read(length) if length <= LONGEST else None
        if data is None:
            return None
        message.ParseFromString(data)
        return message

    def _read(self, count: int) -> bytes | None:
        parts = []
        while count:
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def end(self) -> None:
        """Say that nothing more comes; the other end may still answer."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()
