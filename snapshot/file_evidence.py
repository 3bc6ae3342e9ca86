"""What is known of the files of a job at the instant of its snapshot, and how it is found out.

A file's content is known by its build-id (ELF), or by a digest, or only by size and time. Small
writable files are digested while the job is stopped; all others when it runs again, and that
digest counts only if the file did not change meanwhile. Files on a tmpfs that the job can change
are carried in the snapshot: another node can't have them.

Stores through a shared mapping do not change a file's times, so for files mapped that way times
prove nothing.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.carried_files import CarriedBytes, on_tmpfs

_FULL_DIGEST_BYTES = 64 << 20
"""Up to here a file is digested whole; above, in samples."""
_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10
_STOPPED_FILE_BYTES = 1 << 20
"""Largest file that is digested while the job is stopped (0.5 ms)."""
_STOPPED_TOTAL_BYTES = 8 << 20
_READ_BYTES = 1 << 20
_KERNEL_S_OWN = ("/proc/", "/sys/")
"""What is read there is made at that moment; criu restores such files itself."""


class SharedFileMissedError(CwError):
    """The job mapped {path} between preflight and the stop, too late for its bytes to be carried;
    the snapshot is lost, the job runs on.

    Fix: take again.
    """

    exit_code = ExitCode.LOST


class PauseSpentError(CwError):
    """The pause would become too long with {path}, which is read while the job is stopped; the job
    runs on.

    Fix: raise --max-pause, or take with --stop.
    """

    exit_code = ExitCode.ABORTED


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One regular file that the job has open or mapped."""

    id: int
    """Its id in files.img."""
    path: str
    """Absolute, in the job's mount namespace."""
    flags: int
    pos: int
    size: int
    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    dev: int = 0
    ino: int = 0
    """With `dev`: which file it was at the stop; 0 when it was not looked at then."""
    build_id: str = ""
    digest: str = ""
    """BLAKE3 of the first `size` bytes, or empty when the content is not known."""
    sampled: bool = False
    """The digest covers samples of the file only."""
    mapped: bool = False
    """Some process of the job has it mapped shared and writable."""
    carried: str = ""
    """Stream of the snapshot that has its bytes, or empty."""

    @property
    def writable(self) -> bool:
        """Whether the job can change it through this record or a mapping."""
        return self.mapped or self.flags & images.O_ACCMODE != os.O_RDONLY

    @property
    def append(self) -> bool:
        return bool(self.flags & images.O_APPEND)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FileRecord:
        return cls(**data)


def records(folder: Path) -> list[FileRecord]:
    """The regular files named in the images in `folder`. Deleted files are not among them: criu
    carries those itself (ghost files)."""
    deleted = _remapped(folder)
    found = []
    for entry in images.load(folder / "files.img", "fdinfo", "file_entry"):
        if not entry.HasField("reg") or entry.id in deleted:
            continue
        reg = entry.reg
        mode = reg.mode if reg.HasField("mode") else 0
        if mode and not stat.S_ISREG(mode):
            continue  # working directories are regular files to criu
        if absolute(reg.name).startswith(_KERNEL_S_OWN):
            continue
        build_id = b"".join(struct.pack("<I", word) for word in reg.build_id).hex()
        found.append(
            FileRecord(entry.id, absolute(reg.name), reg.flags, reg.pos, reg.size, mode, build_id=build_id)
        )
    return found


def directories(folder: Path) -> list[str]:
    """Directories that the job has open or works in, without deleted ones: criu makes those for a
    moment."""
    deleted = _remapped(folder)
    entries = images.load(folder / "files.img", "fdinfo", "file_entry")
    found = (e.reg for e in entries if e.HasField("reg") and e.id not in deleted)
    paths = {absolute(reg.name) for reg in found if stat.S_ISDIR(reg.mode)}
    return sorted(path for path in paths if not path.startswith(_KERNEL_S_OWN))


def absolute(name: str | bytes) -> str:
    """The path of a file from its name in an image."""
    path = os.fsdecode(name)  # protobuf gives bytes where a name is not UTF-8
    return path if path.startswith("/") else "/" + path


def _remapped(folder: Path) -> set[int]:
    path = folder / "remap-fpath.img"
    if not path.exists():
        return set()
    return {e.orig_id for e in images.load(path, "remap_file_path", "remap_file_path_entry")}


def digest(path: Path, size: int, *, whole: bool = False) -> tuple[str, bool]:
    """Digest of the first `size` bytes and whether it is one of samples, as it is for a large file
    unless `whole`; the digest is empty when the file can't be read that far."""
    hasher = blake3()
    sampled = size > _FULL_DIGEST_BYTES and not whole
    try:
        with path.open("rb", buffering=0) as file:
            if sampled:
                step = (size - _SAMPLE_BYTES) // (_SAMPLES - 1)
                for index in range(_SAMPLES):
                    file.seek(index * step)
                    hasher.update(_exactly(file, _SAMPLE_BYTES))
            else:
                left = size
                while left:
                    block = _exactly(file, min(left, _READ_BYTES))
                    hasher.update(block)
                    left -= len(block)
    except OSError:
        return "", False
    return hasher.hexdigest(), sampled


def _exactly(file: Any, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = file.read(size - len(data))
        if not block:
            raise OSError("shorter than expected")
        data += block
    return bytes(data)


@dataclass(frozen=True, slots=True)
class StopEvidence:
    """What was found out while the job was stopped."""

    records: list[FileRecord]
    carried: dict[str, CarriedBytes]
    """Of carried files, by stream name."""


def _unlimited() -> timedelta:
    return timedelta.max


def at_stop(
    records_found: Sequence[FileRecord],
    root: Path,
    mapped: Collection[str],
    left: Callable[[], timedelta] = _unlimited,
) -> StopEvidence:
    """Look at files while the job is stopped: digests of small ones that the job can change,
    bytes of those on a tmpfs; of all others only which file it is, and its times.

    :param root: the job's file system root as we reach it.
    :param mapped: files that were mapped shared and writable just before the stop.
    :param left: of the pause.
    :raises PauseSpentError: reading would make the pause too long.
    """
    by_path: dict[str, list[FileRecord]] = {}
    for record in records_found:
        by_path.setdefault(record.path, []).append(record)
    out: list[FileRecord] = []
    carried: dict[str, CarriedBytes] = {}
    budget = _STOPPED_TOTAL_BYTES
    for name, found in by_path.items():
        is_mapped = name in mapped
        path = under(root, name)
        touched = is_mapped or any(r.writable for r in found)
        if not touched and found[0].build_id:
            out += found  # that is evidence enough
            continue
        try:
            now = path.stat()
        except OSError:
            out += found
            continue
        if not touched:
            out += [_with_facts(r, now) for r in found]
            continue
        content, sampled, stream = "", False, ""
        in_time = partial(_in_time, left, name)
        in_time()
        if on_tmpfs(path):
            stream = f"file/{len(carried)}"
            carried[stream] = CarriedBytes.read(path, in_time)
        elif now.st_size <= min(_STOPPED_FILE_BYTES, budget):
            budget -= now.st_size
            content, sampled = digest(path, now.st_size)
        seen = (replace(_with_facts(r, now), mapped=is_mapped) for r in found)
        out += [replace(r, digest=content, sampled=sampled, carried=stream) for r in seen]
    return StopEvidence(out, carried)


def _in_time(left: Callable[[], timedelta], path: str) -> None:
    if not left():
        raise PauseSpentError(path=path)


def _with_facts(record: FileRecord, now: os.stat_result) -> FileRecord:
    return replace(
        record,
        size=record.size or now.st_size,
        mode=record.mode or now.st_mode,
        uid=now.st_uid,
        gid=now.st_gid,
        mtime_ns=now.st_mtime_ns,
        dev=now.st_dev,
        ino=now.st_ino,
    )


def after_go(evidence: StopEvidence, root: Path, written: Collection[int]) -> list[FileRecord]:
    """Complete the records at leisure.

    A digest made now is valid only for a file that is as it was, which a writable mapping makes
    unprovable.

    :param written: ids of files mapped shared and writable at the stop, from the images.
    :raises SharedFileMissedError: one on a tmpfs was mapped too late to be carried.
    """
    mapped = {record.path for record in evidence.records if record.id in written or record.mapped}
    digests = {name: data.digest() for name, data in evidence.carried.items()}
    out = []
    for record in evidence.records:
        path = under(root, record.path)
        seen = replace(record, mapped=record.path in mapped)
        if not seen.mtime_ns:
            with suppress(OSError):
                seen = _with_facts(seen, path.stat())
        if seen.mapped and not seen.carried and on_tmpfs(path):
            raise SharedFileMissedError(path=record.path)
        content, sampled = digests.get(seen.carried, seen.digest), seen.sampled
        if not content and not seen.build_id and not seen.mapped and _unchanged(seen, path):
            content, sampled = digest(path, seen.size)
            if not _unchanged(seen, path):
                content, sampled = "", False
        out.append(replace(seen, digest=content, sampled=sampled))
    return out


def _unchanged(record: FileRecord, path: Path) -> bool:
    try:
        now = path.stat()
    except OSError:
        return False
    same_file = not record.ino or (now.st_dev, now.st_ino) == (record.dev, record.ino)
    return same_file and now.st_size == record.size and now.st_mtime_ns == record.mtime_ns


def under(root: Path, path: str) -> Path:
    """A path of the job as we reach it."""
    return root / path.lstrip("/")
