"""Looking at the job's files before a restore, and carrying out what was decided about them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.build_ids import build_id
from cw_snapshot.snapshot.file_evidence import FileRecord, digest
from cw_snapshot.snapshot.file_rules import Act, Decision, FileNow, FilePolicy, decide, lead

_PERMISSIONS = 0o7777

PourFile = Callable[[FileRecord, Path], None]
"""Writes the bytes of a carried file from the snapshot to a new file."""


class FilesDifferError(CwError):
    """{count} file(s) of the job are not what they were at the snapshot; nothing was started.

    Fix: put them back. For files that the job writes there is a choice, `--files`: rewind (cut back,
    the tail is saved beside the file), keep (leave as they are), redirect DIR (give the job a copy).
    A program, a library or a file opened for reading must be the same.
    """

    exit_code = ExitCode.REFUSED


def observe(record: FileRecord) -> FileNow:
    """A file of the job as it is found now."""
    path = Path(record.path)
    try:
        now = path.stat()
    except OSError:
        return FileNow(exists=False)
    if not stat.S_ISREG(now.st_mode):
        return FileNow(True, mode=now.st_mode)  # opening a FIFO would wait for ever
    same: bool | None = None
    if record.digest and now.st_size >= record.size:
        untouched = now.st_mtime_ns == record.mtime_ns and now.st_size == record.size
        if record.sampled and untouched and not record.mapped:
            same = True
        else:
            content, sampled = digest(path, record.size, whole=bool(record.carried))
            same = content == record.digest and sampled == record.sampled
            if same and sampled:
                same = None  # samples prove a difference, not that there is none
    found = build_id(path) if record.build_id else ""
    return FileNow(True, now.st_size, now.st_mode, now.st_mtime_ns, found, same)


def decide_all(
    records: Sequence[FileRecord],
    policy: FilePolicy,
    *,
    redirect_to: Path | None = None,
    own_log: str = "",
) -> list[Decision]:
    """Decide about every file; nothing is changed. All records of a file share its fate.

    :param redirect_to: folder of the copies that the job gets with FilePolicy.REDIRECT.
    :param own_log: path of the log that `run` gave the job.
    """
    by_path: dict[str, list[FileRecord]] = {}
    for record in records:
        by_path.setdefault(record.path, []).append(record)
    decisions = []
    for group in by_path.values():
        first = lead(group)
        decision = decide(first, observe(first), policy, own_log=first.path == own_log)
        if decision.act is Act.REDIRECT and redirect_to is not None:
            target = _redirected(first, redirect_to)
            if target.exists():
                decision = Decision(first, Act.REFUSE, f"{target} exists already; name another DIR")
        decisions += [replace(decision, record=record) for record in group]
    return decisions


def refuse_if_needed(decisions: Sequence[Decision], missing_directories: Sequence[str]) -> None:
    """Raise :class:`FilesDifferError` with one line for every file that stands in the way."""
    lines = sorted({f"{d.record.path}: {d.why}" for d in decisions if d.act is Act.REFUSE})
    lines += [f"{path}: the directory does not exist" for path in missing_directories]
    if lines:
        raise FilesDifferError(count=len(lines), evidence=lines)


@dataclass(frozen=True, slots=True)
class ImageEdit:
    """A change to one regular file's entry in files.img."""

    name: str | None = None
    any_size: bool = False
    """Let criu take the file at whatever size it has."""
    pos: int | None = None


def apply(
    decisions: Sequence[Decision], *, pour: PourFile, redirect_to: Path | None, tag: str, notes: list[str]
) -> dict[int, ImageEdit]:
    """Bring the files into the state that was decided.

    :param tag: goes into the names of what is saved beside a file.
    :param notes: gets a line for each thing done, at once: the next one may fail.
    :returns: what must change in the images, by file id.
    """
    edits: dict[int, ImageEdit] = {}
    done: set[str] = set()
    for decision in decisions:
        record = decision.record
        path = Path(record.path)
        first = record.path not in done
        done.add(record.path)
        match decision.act:
            case Act.APPEND:
                edits[record.id] = ImageEdit(any_size=True)
            case Act.CREATE | Act.CREATE_EMPTY if first:
                _create(record, pour if decision.act is Act.CREATE else _pour_nothing)
                notes.append(f"created {path}")
            case Act.REWIND if first:
                saved = _save_tail(path, record.size, tag)
                os.truncate(path, record.size)
                notes.append(f"cut {path} back to {record.size} bytes, the tail is in {saved}")
            case Act.REWRITE if first:
                saved = _unused(path.with_name(f"{path.name}.cw-{tag}"))
                # A new file: a stranger that has the old one mapped must not see it change.
                path.rename(saved)
                try:
                    _create(record, pour)
                except BaseException:
                    saved.rename(path)
                    raise
                notes.append(f"rewrote {path}, its former content is in {saved}")
            case Act.KEEP:
                sequential = record.pos == record.size
                end = path.stat().st_size
                edits[record.id] = ImageEdit(any_size=True, pos=end if sequential else None)
                where = f"at its new end, {end}" if sequential else f"at its old offset, {record.pos}"
                notes.append(f"kept {path}; the job goes on {where}")
            case Act.REDIRECT:
                assert redirect_to is not None
                target = _redirected(record, redirect_to)
                if first:
                    _copy_to(target, record, pour)
                    notes.append(f"redirected {path} to {target}")
                edits[record.id] = ImageEdit(name=str(target))
        if decision.unproven and first:
            notes.append(f"{path}: its first {record.size} bytes could not be compared with the snapshot's")
    return edits


def _redirected(record: FileRecord, folder: Path) -> Path:
    # A name can be put into the images only as UTF-8.
    return folder / os.fsencode(record.path.lstrip("/")).decode(errors="backslashreplace")


def _unused(path: Path) -> Path:
    """`path`, or with a number behind it when there is such a file: nothing saved is overwritten."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def _own(path: Path, record: FileRecord) -> None:
    os.chown(path, record.uid, record.gid)
    path.chmod(record.mode & _PERMISSIONS)


def _pour_nothing(_: FileRecord, target: Path) -> None:
    target.open("xb").close()


def _create(record: FileRecord, pour: PourFile) -> None:
    path = Path(record.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pour(record, path)
        _own(path, record)
    except FileExistsError:
        raise  # somebody else's
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _save_tail(path: Path, size: int, tag: str) -> Path:
    saved = _unused(path.with_name(f"{path.name}.cw-tail-{tag}"))
    with path.open("rb") as source, saved.open("xb") as target:
        source.seek(size)
        shutil.copyfileobj(source, target)
    return saved


def _copy_to(target: Path, record: FileRecord, pour: PourFile) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if record.carried:
        pour(record, target)
    else:
        with Path(record.path).open("rb") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        os.truncate(target, record.size)
    _own(target, record)


def edit_images(folder: Path, edits: dict[int, ImageEdit]) -> None:
    """Apply edits to files.img in `folder`."""
    if not edits:
        return
    path = folder / "files.img"
    entries = images.load(path, "fdinfo", "file_entry")
    for entry in entries:
        edit = edits.get(entry.id) if entry.HasField("reg") else None
        if edit is None:
            continue
        if edit.name is not None:
            entry.reg.name = edit.name
        if edit.any_size:
            entry.reg.ClearField("size")
        if edit.pos is not None:
            entry.reg.pos = edit.pos
    images.store(path, entries)
