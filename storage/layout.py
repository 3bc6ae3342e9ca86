"""Names of objects, and reading and writing objects that are named by their content."""

from __future__ import annotations

import re

from blake3 import blake3

from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.errors import IntegrityError, ObjectMissingError
from cw_snapshot.storage.pages import Bytes

CONFIG = "config"
PACKS = "packs/"
INDEXES = "index/"
MANIFESTS = "manifests/"
SNAPSHOTS = "snapshots/"

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether `text` can be the name part of a content-addressed object."""
    return _DIGEST.fullmatch(text) is not None


def content_digest(data: Bytes) -> str:
    """The name part of a content-addressed object: its plain BLAKE3-256 in hexadecimal."""
    return blake3(data).hexdigest()


def pack_name(digest: str) -> str:
    return f"{PACKS}{digest[:2]}/{digest}"


def index_name(digest: str) -> str:
    return INDEXES + digest


def manifest_name(digest: str) -> str:
    return MANIFESTS + digest


def commit_name(job: str, snapshot: str) -> str:
    return f"{SNAPSHOTS}{job}/{snapshot}"


def digest_of(name: str) -> str | None:
    """The digest at the end of an object's name, or None if the name does not end with one."""
    last = name.rpartition("/")[2]
    return last if is_digest(last) else None


def read_whole(backend: Backend, name: str, *, limit: int, damaged: type[IntegrityError]) -> bytes:
    """All of an object of at most `limit` bytes; a larger one raises `damaged` before it is read."""
    size = backend.head(name)
    if size is None:
        raise ObjectMissingError(name=name, store=backend.location)
    if size > limit:
        raise damaged(name=name, what=f"it has {size} bytes, more than the {limit} allowed")
    return bytes(backend.get_range(name, 0, size))


def read_addressed(backend: Backend, name: str, *, limit: int, damaged: type[IntegrityError]) -> bytes:
    """Like `read_whole`, and `damaged` is raised unless the content has the hash in its name."""
    data = read_whole(backend, name, limit=limit, damaged=damaged)
    if content_digest(data) != digest_of(name):
        raise damaged(name=name, what="its content does not have the hash that is its name")
    return data
