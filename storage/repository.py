"""One repository: opening and creating it, its snapshots, its index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cw_snapshot.errors import InternalError
from cw_snapshot.storage import layout
from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.commit import (
    MAX_COMMIT_SIZE,
    Commit,
    NodeManifest,
    SnapshotRef,
    check_identity,
    decode_commit,
    encode_commit,
    is_snapshot_id,
    new_snapshot_id,
)
from cw_snapshot.storage.config import RepositoryConfig, decode_config, encode_config, new_config
from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.errors import (
    CommitDamagedError,
    ConfigDamagedError,
    IndexDamagedError,
    IntegrityError,
    NameTakenError,
    ObjectMissingError,
    PackDamagedError,
    RepositoryExistsError,
    RepositoryNotFoundError,
    SnapshotAmbiguousError,
    SnapshotNotFoundError,
)
from cw_snapshot.storage.index import MAX_INDEX_SIZE, ChunkIndex, IndexedPack, decode_index
from cw_snapshot.storage.urls import open_backend

_MAX_CONFIG_SIZE = 1 << 20
_ID_TRIES = 8
_PROBE = "probe"
_LATEST = "latest:"

OnDamage = Callable[[IntegrityError], None]


class Repository:
    """Chunks, packs, indexes and manifests in one place. Holds no state but its config: thread-safe."""

    def __init__(self, backend: Backend, config: RepositoryConfig) -> None:
        self.backend = backend
        self.config = config

    @classmethod
    def init(cls, backend: Backend, *, chunker: ChunkerParams | None = None) -> Repository:
        """Create a repository in an empty store, with a new random id and key.

        :raises RepositoryExistsError: there is one, or there are packs of one without a config.
        """
        if backend.head(layout.CONFIG) is not None:
            raise RepositoryExistsError(store=backend.location, what="it has a config")
        for prefix in (layout.PACKS, layout.SNAPSHOTS):
            for found in backend.list(prefix):
                raise RepositoryExistsError(
                    store=backend.location, what=f"it has no config, but {found.name}"
                )
        config = new_config(chunker, conditional_writes=_honours_conditions(backend))
        if not backend.put_if_absent(layout.CONFIG, encode_config(config)):
            raise RepositoryExistsError(store=backend.location, what="it was created a moment ago")
        return cls(backend, config)

    @classmethod
    def open(cls, where: str | Path | Backend) -> Repository:
        """Open the repository at a URL (for now a path) or in a backend.

        :raises RepositoryNotFoundError: there is none.
        :raises UnsupportedFormatError: a newer version made it.
        :raises ConfigDamagedError: its config can't be trusted.
        """
        backend = where if isinstance(where, Backend) else open_backend(where)
        if backend.head(layout.CONFIG) is None:
            raise RepositoryNotFoundError(store=backend.location)
        data = layout.read_whole(backend, layout.CONFIG, limit=_MAX_CONFIG_SIZE, damaged=ConfigDamagedError)
        return cls(backend, decode_config(data, layout.CONFIG))

    # --- snapshots --------------------------------------------------------------------------

    def commit(
        self,
        *,
        job: str,
        incarnation: int,
        nodes: Iterable[NodeManifest],
        indexes: Iterable[str] = (),
        name: str | None = None,
        summary: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> Commit:
        """Create the commit object: after this returned, the snapshot exists.

        Call it last, when every manifest, index and pack that it stands for is durable.

        :raises BadIdentityError: `job`, `name` or a node's name can't be used.
        """
        created = (now or datetime.now(UTC)).astimezone(UTC)
        nodes, indexes = tuple(nodes), tuple(indexes)
        for _ in range(_ID_TRIES):
            commit = Commit(
                job=job,
                snapshot=new_snapshot_id(created),
                incarnation=incarnation,
                created=created,
                nodes=nodes,
                indexes=indexes,
                name=name,
                summary=summary or {},
            )
            if self._create(commit.ref.name, encode_commit(commit, self.config.repository_id)):
                return commit
        raise InternalError(what="no free snapshot id was found")

    def list_snapshots(self, job: str | None = None) -> list[SnapshotRef]:
        """All snapshots, or those of one job; by job, then from the oldest to the newest."""
        prefix = layout.SNAPSHOTS
        if job is not None:
            check_identity("job id", job)
            prefix += f"{job}/"
        refs = []
        for found in self.backend.list(prefix):
            parts = found.name.split("/")
            if len(parts) == 3 and is_snapshot_id(parts[2]):
                refs.append(SnapshotRef(job=parts[1], snapshot=parts[2]))
        return sorted(refs)

    def read_commit(self, ref: SnapshotRef) -> Commit:
        """The commit of `ref`, checked.

        :raises SnapshotNotFoundError: there is none (any more).
        :raises CommitDamagedError: it can't be trusted.
        """
        if self.backend.head(ref.name) is None:
            raise SnapshotNotFoundError(token=f"{ref.job}/{ref.snapshot}")
        data = layout.read_whole(self.backend, ref.name, limit=MAX_COMMIT_SIZE, damaged=CommitDamagedError)
        return decode_commit(data, ref, self.config.repository_id)

    def find(self, token: str) -> SnapshotRef:
        """The one snapshot that `token` names: an id, a name, `latest:JOB`, or the beginning of an id.

        A whole id or name wins over the beginning of another id.

        :raises SnapshotNotFoundError: it names none.
        :raises SnapshotAmbiguousError: it names several; they are in the evidence.
        """
        if token.startswith(_LATEST):
            return self._latest(token)
        refs = self.list_snapshots()
        damaged: list[SnapshotRef] = []
        found = [ref for ref in refs if ref.snapshot == token]
        if not found:
            found = [ref for ref in refs if self._label(ref, damaged) == token]
        if not found and token:
            found = [ref for ref in refs if ref.snapshot.startswith(token)]
        if not found:
            names = ", ".join(f"{ref.job}/{ref.snapshot}" for ref in damaged)
            hidden = [f"{len(damaged)} damaged commits could not be looked at: {names}"] if damaged else []
            raise SnapshotNotFoundError(token=token, evidence=hidden)
        if len(found) > 1:
            candidates = [f"{ref.job}/{ref.snapshot}" for ref in found]
            raise SnapshotAmbiguousError(token=token, count=len(found), evidence=candidates)
        return found[0]

    def refuse_name(self, name: str) -> None:
        """Raise :class:`NameTakenError` unless a new snapshot can have this name."""
        if name == "latest" or is_snapshot_id(name):
            raise NameTakenError(name=name, why="it means something else")
        for ref in self.list_snapshots():
            if self._label(ref) == name:
                raise NameTakenError(name=name, why=f"{ref.job}/{ref.snapshot} is")

    def delete_snapshot(self, ref: SnapshotRef) -> None:
        """Delete the commit object: the snapshot no longer exists. Its chunks stay until a prune.

        :raises SnapshotNotFoundError: there is none.
        """
        if self.backend.head(ref.name) is None:
            raise SnapshotNotFoundError(token=f"{ref.job}/{ref.snapshot}")
        self.backend.delete(ref.name)

    def _latest(self, token: str) -> SnapshotRef:
        refs = self.list_snapshots(token.removeprefix(_LATEST))
        if not refs:
            raise SnapshotNotFoundError(token=token)
        # Ids have whole seconds: only the commits know the order within one.
        second = refs[-1].snapshot.partition("-")[0]
        tied = [ref for ref in refs if ref.snapshot.startswith(second)]
        return tied[0] if len(tied) == 1 else max(tied, key=lambda ref: self.read_commit(ref).created)

    def _label(self, ref: SnapshotRef, damaged: list[SnapshotRef] | None = None) -> str | None:
        """The name of a snapshot; one whose commit is damaged or gone has none that can be trusted.

        :param damaged: gets `ref` when its commit is damaged.
        """
        try:
            return self.read_commit(ref).name
        except SnapshotNotFoundError:
            return None
        except IntegrityError:
            if damaged is not None:
                damaged.append(ref)
            return None

    def _create(self, name: str, data: bytes) -> bool:
        if self.config.conditional_writes:
            return self.backend.put_if_absent(name, data)
        # The store can't arbitrate. The id is random, and only one coordinator commits for a job.
        if self.backend.head(name) is not None:
            return False
        self.backend.put(name, data)
        return True

    # --- index ------------------------------------------------------------------------------

    def read_index(self, digest: str) -> list[IndexedPack]:
        """One index object, checked."""
        name = layout.index_name(digest)
        data = layout.read_addressed(self.backend, name, limit=MAX_INDEX_SIZE, damaged=IndexDamagedError)
        return decode_index(data, name, self.config.repository_id)

    def list_indexes(self) -> Sequence[str]:
        """Digests of all index objects."""
        digests = (layout.digest_of(found.name) for found in self.backend.list(layout.INDEXES))
        return [digest for digest in digests if digest is not None]

    def list_packs(self) -> dict[str, int]:
        """Size in bytes of every pack object, by digest."""
        packs = {}
        for found in self.backend.list(layout.PACKS):
            digest = layout.digest_of(found.name)
            if digest is not None and found.name == layout.pack_name(digest):
                packs[digest] = found.size
        return packs

    def load_index(self, on_damage: OnDamage | None = None) -> ChunkIndex:
        """All index objects in one, compared with the packs that are really there.

        A pack that is gone or has another size than it should counts as lost: a take stores its
        chunks again instead of relying on them.

        :param on_damage: called with each index object's error, which is then left out; without it
            the first is raised.
        """
        packs: dict[str, IndexedPack] = {}
        for digest in self.list_indexes():
            try:
                packs.update((pack.digest, pack) for pack in self.read_index(digest))
            except IntegrityError as error:
                if on_damage is None:
                    raise
                on_damage(error)
        # Listed after the indexes were read: a pack is durable before an index names it.
        sizes = self.list_packs()
        lost = {digest for digest, pack in packs.items() if sizes.get(digest) != pack.size}
        return ChunkIndex(packs.values(), lost)

    def explain_lost(self, digest: str, size: int) -> IntegrityError:
        """What is wrong with a pack that an index calls lost: it is gone, or has another size."""
        name = layout.pack_name(digest)
        found = self.backend.head(name)
        if found is None:
            return ObjectMissingError(name=name, store=self.backend.location)
        return PackDamagedError(name=name, what=f"it has {found} bytes instead of {size}")


def _honours_conditions(backend: Backend) -> bool:
    """Try whether put_if_absent refuses the second time."""
    backend.delete(_PROBE)
    first = backend.put_if_absent(_PROBE, b"1")
    second = backend.put_if_absent(_PROBE, b"2")
    backend.delete(_PROBE)
    return first and not second
