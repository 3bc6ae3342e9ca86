"""The repository: chunks, packs, manifests, backends. Knows bytes. Knows no process.

Where to begin: :class:`~cw_snapshot.storage.repository.Repository` opens one,
:class:`~cw_snapshot.storage.writer.TreeWriter` stores a tree,
:class:`~cw_snapshot.storage.reader.TreeReader` pours it back, and
:mod:`~cw_snapshot.storage.interfaces` says what a caller brings along.
The bytes of every object are described in docs/internals/repository.md.
"""
