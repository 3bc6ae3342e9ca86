"""The commit: the one object that makes a snapshot a snapshot, created last.

Its name is `snapshots/<job>/<snapshot id>`; its bytes are one sealed JSON object.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cw_snapshot.storage.documents import Fields, check_seal, parse_object, seal
from cw_snapshot.storage.errors import (
    BadIdentityError,
    CommitDamagedError,
    ForeignObjectError,
    UnsupportedFormatError,
)
from cw_snapshot.storage.layout import commit_name, is_digest
from cw_snapshot.storage.manifest import ManifestRef

SCHEMA = "cw-snapshot/commit/1"
MAX_COMMIT_SIZE = 16 << 20
"""Bytes of a commit object that a reader accepts."""

LONGEST_IDENTITY = 64
LONGEST_NODE = 128
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_SNAPSHOT_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}", re.ASCII)
_ID_TIME = "%Y%m%dT%H%M%SZ"
_CREATED = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, order=True)
class SnapshotRef:
    """A snapshot by job and id, as `list` shows it."""

    job: str
    snapshot: str

    @property
    def name(self) -> str:
        """Name of the commit object."""
        return commit_name(self.job, self.snapshot)


@dataclass(frozen=True)
class NodeManifest:
    """One node's part of a snapshot."""

    node: str
    digest: str
    """The manifest object's, 64 hexadecimal digits."""
    size: int
    """Bytes of the manifest object."""

    @property
    def ref(self) -> ManifestRef:
        """What a `TreeReader` is opened with."""
        return ManifestRef(self.digest, self.size)


@dataclass(frozen=True)
class Commit:
    job: str
    snapshot: str
    incarnation: int
    """0 for the job as it was started, one more after each restore."""
    created: datetime
    """UTC."""
    nodes: tuple[NodeManifest, ...]
    indexes: tuple[str, ...] = ()
    """Digests of the index objects that were written for this snapshot."""
    name: str | None = None
    """A label the user gave."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The caller's (timings, sizes); not looked at here."""

    @property
    def ref(self) -> SnapshotRef:
        return SnapshotRef(self.job, self.snapshot)


def check_identity(kind: str, value: str, longest: int = LONGEST_IDENTITY) -> None:
    """Raise `BadIdentityError` unless `value` can be a job id, a label or (longer) a node name."""
    if len(value) > longest or not _IDENTITY.fullmatch(value):
        raise BadIdentityError(kind=kind, value=value[:200], longest=longest)


def is_snapshot_id(text: str) -> bool:
    return _SNAPSHOT_ID.fullmatch(text) is not None


def new_snapshot_id(now: datetime) -> str:
    """An id for a snapshot made at `now` (aware): UTC time and 8 random hexadecimal digits."""
    return f"{now.astimezone(UTC).strftime(_ID_TIME)}-{secrets.token_hex(4)}"


def encode_commit(commit: Commit, repository_id: str) -> bytes:
    """The bytes of the commit object.

    :raises BadIdentityError: job, name or a node can't be used.
    :raises ValueError: the summary is not JSON, or the commit is larger than a reader accepts.
    """
    check_identity("job id", commit.job)
    if commit.name is not None:
        check_identity("snapshot name", commit.name)
    for entry in commit.nodes:
        check_identity("node name", entry.node, LONGEST_NODE)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "repository": repository_id,
        "job": commit.job,
        "snapshot": commit.snapshot,
        "incarnation": commit.incarnation,
        "created": commit.created.astimezone(UTC).strftime(_CREATED),
        "name": commit.name,
        "nodes": [
            {"node": entry.node, "manifest": entry.digest, "size": entry.size} for entry in commit.nodes
        ],
        "indexes": list(commit.indexes),
        "summary": dict(commit.summary),
    }
    data = seal(document)
    if len(data) > MAX_COMMIT_SIZE:
        raise ValueError(f"the commit would have {len(data)} bytes; {MAX_COMMIT_SIZE} are allowed")
    return data


def decode_commit(data: bytes, ref: SnapshotRef, repository_id: str) -> Commit:
    """Parse the commit object of `ref`.

    :raises CommitDamagedError: it is not a commit, or not that of `ref`, whatever the bytes.
    :raises ForeignObjectError: it was written for another repository.
    """
    try:
        document = parse_object(data)
        fields = Fields(document)
        schema = fields.text("schema")
        if schema != SCHEMA:
            raise UnsupportedFormatError(name=ref.name, found=schema[:80], supported=SCHEMA)
        check_seal(document, data)
        owner = fields.text("repository")
        if owner != repository_id:
            raise ForeignObjectError(name=ref.name, found=owner[:80], expected=repository_id)
        commit = _commit(fields)
        if commit.ref != ref:
            raise ValueError(f"it is that of {commit.ref.name}")
        return commit
    except ValueError as error:
        raise CommitDamagedError(name=ref.name, what=str(error)) from error
    except BadIdentityError as error:
        raise CommitDamagedError(name=ref.name, what=error.message) from error


def _commit(fields: Fields) -> Commit:
    label = fields.optional_text("name")
    if label is not None:
        check_identity("snapshot name", label)
    return Commit(
        job=fields.text("job"),
        snapshot=fields.text("snapshot"),
        incarnation=fields.number("incarnation"),
        created=datetime.strptime(fields.text("created"), _CREATED).replace(tzinfo=UTC),
        nodes=tuple(_node(Fields(row, "a node")) for row in fields.sequence("nodes")),
        indexes=tuple(_digest(row) for row in fields.sequence("indexes")),
        name=label,
        summary=fields.mapping("summary"),
    )


def _node(fields: Fields) -> NodeManifest:
    node = fields.text("node")
    check_identity("node name", node, LONGEST_NODE)
    return NodeManifest(node=node, digest=_digest(fields.text("manifest")), size=fields.number("size"))


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not is_digest(value):
        raise ValueError("it names an object that can't be")
    return value
