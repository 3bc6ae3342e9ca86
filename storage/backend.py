"""The store under a repository, behind six verbs.

A backend keeps named objects. It knows nothing of chunks, packs or snapshots. What every
backend promises, and what :mod:`~cw_snapshot.storage` relies on:

Names
    are parts joined by `/`, each `[A-Za-z0-9][A-Za-z0-9._-]*` and at most 128 characters, so that
    no name can leave the store or collide with a backend's own files. Anything else is a defect
    of the caller and raises `InternalError`.
Atomicity
    An object is there completely or not at all, for every reader, whenever the writer dies. An
    object that is replaced is seen as it was or as it is, never mixed.
Durability
    What `put`, `put_if_absent` and `delete` did when they return survives a crash of the
    machine. That may take long (an fsync, an upload): call them off the critical path.
Idempotence
    `put`, `delete` and the reading verbs may be repeated after any error. `put_if_absent` may
    too, but its answer after an error says less: the try that failed may have created the object.
Threads
    All verbs may be called from several threads at once.
Errors
    `StoreError` and its kinds (exit 8 or 9) when the store did not do it. A backend repeats what
    is worth repeating by itself, so an error that comes out is permanent for this operation.
    `ObjectMissingError` and `ObjectTooShortError` (exit 7) are answers, not failures.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from cw_snapshot.errors import InternalError
from cw_snapshot.storage.pages import Bytes

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}", re.ASCII)
_PREFIX = re.compile(rf"(?:{_PART}/){{0,7}}", re.ASCII)


def check_name(name: str) -> None:
    """Raise `InternalError` unless `name` can name an object."""
    if not _NAME.fullmatch(name):
        raise InternalError(what=f"{name!r} is not an object name")


def check_prefix(prefix: str) -> None:
    """Raise `InternalError` unless `prefix` is empty or whole parts, each ending with `/`."""
    if not _PREFIX.fullmatch(prefix):
        raise InternalError(what=f"{prefix!r} is not a prefix of object names")


@dataclass(frozen=True)
class StoredObject:
    """One line of a listing."""

    name: str
    size: int
    """Bytes."""


class Backend(ABC):
    """A store of named objects. See the module for what holds for all verbs."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The store as the user named it, for messages. Holds no secret."""

    @abstractmethod
    def put(self, name: str, data: Bytes) -> None:
        """Store `data` as `name`, in place of what was there.

        `data` is not changed or kept after returning.
        """

    @abstractmethod
    def put_if_absent(self, name: str, data: Bytes) -> bool:
        """Store `data` as `name` if nothing is there; say whether this call did.

        However many callers try at the same time, exactly one gets True, and the object holds its
        data from then on.
        """

    @abstractmethod
    def get_range(self, name: str, offset: int = 0, length: int | None = None) -> Bytes:
        """Exactly `length` bytes from `offset` (both in bytes), or all to the end if None.

        :raises ObjectMissingError: there is no such object.
        :raises ObjectTooShortError: it ends before `offset + length`, or before `offset`. A short
            answer is never given.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose names begin with `prefix`: "" or whole parts ending with `/`.

        In no order. An object created or deleted while the listing runs may be in it or not;
        everything else is. Half-written objects never are. A prefix without objects is empty.
        """

    @abstractmethod
    def head(self, name: str) -> int | None:
        """The object's size in bytes, or None if there is no such object."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove the object. No error if it is not there."""

    def check_writable(self) -> None:  # noqa: B027  # a store may have nothing to ask beforehand
        """Find out before anything depends on it whether `put` can work.

        :raises StoreError: it can't.
        """
