"""Everything that can go wrong in this room, as the user reads it.

Two families matter to callers: :class:`IntegrityError` (exit 7) means that bytes in the
repository are not what they must be, :class:`StoreError` (exit 8) that the store did not do
what it was asked. Object names are relative to the repository, so that a message fits a
directory and a bucket alike.
"""

from __future__ import annotations

from cw_snapshot.errors import CwError, ExitCode

# --- damaged, foreign, incomplete -----------------------------------------------------------


class IntegrityError(CwError):
    """{name} is damaged: {what}.

    Fix: `cw-snapshot verify` lists what else is damaged and which snapshots are whole.
    """

    exit_code = ExitCode.INTEGRITY


class ConfigDamagedError(IntegrityError):
    """The repository's {name} is damaged: {what}.

    Fix: put back a copy of it from a backup; without it no chunk can be verified.
    """


class CommitDamagedError(IntegrityError):
    """The commit {name} is damaged: {what}.

    Fix: use another snapshot of the job, and delete this one.
    """


class ManifestDamagedError(IntegrityError):
    """The manifest {name} is damaged: {what}.

    Fix: use another snapshot of the job; this one can't be restored.
    """


class IndexDamagedError(IntegrityError):
    """The index {name} is damaged: {what}.

    Fix: `cw-snapshot repo repair-index` makes it anew from the packs; no snapshot is lost by this alone.
    """


class PackDamagedError(IntegrityError):
    """The pack {name} is damaged: {what}.

    Fix: `cw-snapshot verify SNAP` tells whether another snapshot needs it too; restore one that does not.
    """


class ChunkDamagedError(IntegrityError):
    """Chunk {chunk} in the pack {name} is damaged: {what}.

    Fix: `cw-snapshot verify` tells which snapshots need it; others are not touched by this.
    """


class ChunkMissingError(IntegrityError):
    """{count} chunks that {name} needs are in no index, the first is {chunk}.

    Fix: `cw-snapshot repo repair-index`; if the chunks are still missing, use another snapshot.
    """


class StreamMissingError(IntegrityError):
    """The manifest {name} has no stream "{stream}".

    Fix: the snapshot was written by another version or is not complete; use another one.
    """


class ForeignObjectError(IntegrityError):
    """{name} belongs to the repository {found}, not to this one ({expected}).

    Fix: open the repository that it came from; objects can't be copied between repositories.
    """


class UnsupportedFormatError(IntegrityError):
    """{name} has format {found}; this version reads {supported}.

    Fix: use the version of cw-snapshot that wrote it, or a newer one.
    """


class ObjectMissingError(IntegrityError):
    """{name} is missing from {store}.

    Fix: `cw-snapshot verify` lists what else is missing and which snapshots are whole.
    """


class ObjectTooShortError(IntegrityError):
    """{name} in {store} ends before byte {end}: it was truncated.

    Fix: `cw-snapshot verify` lists what else is damaged and which snapshots are whole.
    """


# --- the store ------------------------------------------------------------------------------


class StoreError(CwError):
    """The store {store} failed: {what}.

    Fix: see the evidence; repeat when the store answers again.
    """

    exit_code = ExitCode.UNREACHABLE


class StoreUnreachableError(StoreError):
    """The store {store} can't be reached: {what}.

    Fix: check that it is mounted or running, and repeat.
    """


class StoreFullError(StoreError):
    """The store {store} is full: {what}.

    Fix: free space or raise the quota, and repeat; nothing half-written is counted as a snapshot.
    """


class StoreReadOnlyError(StoreError):
    """The store {store} is read-only: {what}.

    Fix: make its file system writable, or use another repository.
    """


class StoreNotPermittedError(StoreError):
    """The store {store} refused: {what}.

    Fix: give this user read and write permission, or run as the repository's owner.
    """

    exit_code = ExitCode.NOT_PERMITTED


# --- asked for the wrong thing --------------------------------------------------------------


class RepositoryNotFoundError(CwError):
    """There is no repository at {store}.

    Fix: check the address, or create one with `cw-snapshot repo init`.
    """

    exit_code = ExitCode.NOT_FOUND


class RepositoryExistsError(CwError):
    """There is already a repository at {store}: {what}.

    Fix: use it as it is, or choose an empty place.
    """

    exit_code = ExitCode.USAGE


class UnsupportedUrlError(CwError):
    """The repository address {url} is not supported: {what}.

    Fix: give a path to a directory.
    """

    exit_code = ExitCode.USAGE


class BadIdentityError(CwError):
    """The {kind} "{value}" is not allowed.

    Fix: use letters, digits, dot, underscore and hyphen, beginning with a letter or digit, at most
    {longest} characters.
    """

    exit_code = ExitCode.USAGE


class SnapshotNotFoundError(CwError):
    """There is no snapshot "{token}".

    Fix: `cw-snapshot list` shows what there is.
    """

    exit_code = ExitCode.NOT_FOUND


class NameTakenError(CwError):
    """A new snapshot can't be named "{name}": {why}.

    Fix: choose another name; `cw-snapshot list` shows those that are taken.
    """

    exit_code = ExitCode.REFUSED


class SnapshotAmbiguousError(CwError):
    """The name "{token}" fits {count} snapshots.

    Fix: give one of these ids, or more of it.
    """

    exit_code = ExitCode.USAGE


class MemoryBudgetError(CwError):
    """A memory budget of {given} MiB is too small to store a snapshot; it takes at least {needed} MiB.

    Fix: raise `--limit-memory`.
    """

    exit_code = ExitCode.USAGE


class StoppedError(CwError):
    """Stopped, because another part of the same operation failed first: {what}

    Fix: see that error.
    """

    exit_code = ExitCode.LOST
