"""Files that criu makes beside a job's deleted files while it restores them, and leaves when it is killed.

criu names them `PATH.cr.ID.ghost` and refuses to use one that exists (criu/files-reg.c, ghost_path and
mkreg_ghost); where the folder is gone it takes the next one above (trim_last_parent).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cw_snapshot.snapshot import images
from cw_snapshot.snapshot.file_evidence import absolute

_GHOST = 1
"""criu/images/remap-file-path.proto."""


def names(folder: Path) -> list[Path]:
    """What the ghosts of the images in `folder` are called while criu restores them."""
    path = folder / "remap-fpath.img"
    if not path.exists():
        return []
    remaps = {
        e.orig_id: e.remap_id
        for e in images.load(path, "remap_file_path", "remap_file_path_entry")
        if e.remap_type == _GHOST
    }
    entries = images.load(folder / "files.img", "fdinfo", "file_entry")
    return [
        _reachable(Path(f"{absolute(e.reg.name)}.cr.{remaps[e.id]:x}.ghost"))
        for e in entries
        if e.id in remaps and e.HasField("reg")
    ]


def _reachable(path: Path) -> Path:
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    return parent / path.name


def remove(ghosts: Iterable[Path]) -> None:
    """Remove what was left of a restore; no restore of these images may be under way."""
    for ghost in ghosts:
        with suppress(OSError):  # not there, as a rule
            ghost.unlink()
