"""Rebuilding the index from the packs' own footers."""

from __future__ import annotations

from dataclasses import dataclass

from cw_snapshot.storage import layout
from cw_snapshot.storage.errors import IntegrityError
from cw_snapshot.storage.index import IndexedPack, encode_index
from cw_snapshot.storage.packs import read_footer
from cw_snapshot.storage.repository import Repository


@dataclass(frozen=True)
class RebuildResult:
    index: str | None
    """Digest of the new index object, or None if none was needed."""
    packs: int
    """Packs in it."""
    removed: tuple[str, ...]
    """Digests of index objects that were damaged and are deleted now."""
    problems: tuple[IntegrityError, ...]
    """Packs whose footers can't be read; their chunks are in no index."""


def rebuild_index(repository: Repository) -> RebuildResult:
    """Index every pack that no sound index object names, then delete the damaged index objects.

    Sound index objects stay. May be interrupted and repeated, and may run beside a take: at worst
    a pack is indexed twice.
    """
    indexed: dict[str, int] = {}
    damaged = []
    for digest in repository.list_indexes():
        try:
            indexed.update((pack.digest, pack.size) for pack in repository.read_index(digest))
        except IntegrityError:
            damaged.append(digest)

    found, problems = [], []
    for digest, size in sorted(repository.list_packs().items()):
        if indexed.get(digest) == size:
            continue
        try:
            entries = read_footer(repository.backend, layout.pack_name(digest), size)
        except IntegrityError as error:
            problems.append(error)
            continue
        found.append(IndexedPack(digest=digest, size=size, entries=entries))

    index = None
    if found:
        data = encode_index(found, repository.config.repository_id)
        index = layout.content_digest(data)
        repository.backend.put(layout.index_name(index), data)
    # The same packs give the same object: a damaged one may just have been replaced by a sound one.
    removed = tuple(digest for digest in damaged if digest != index)
    for digest in removed:  # only now: the new one is durable
        repository.backend.delete(layout.index_name(digest))
    return RebuildResult(index=index, packs=len(found), removed=removed, problems=tuple(problems))
