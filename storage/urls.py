"""From a repository's address to its backend."""

from __future__ import annotations

import re
from pathlib import Path

from cw_snapshot.storage import layout
from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.directory import DirectoryBackend
from cw_snapshot.storage.errors import UnsupportedUrlError

_OURS = (".", "lost+found", "packs", "index", "manifests", "snapshots")
"""What a new file system, or an init that was cut off, may have left."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)


def _has_other_files(folder: Path) -> bool:
    """Whether a folder is used for something else than a repository."""
    if not folder.is_dir() or (folder / layout.CONFIG).exists():
        return False
    return any(not name.name.startswith(_OURS) for name in folder.iterdir())


def open_backend(url: str | Path, *, create: bool = False) -> Backend:
    """The backend at `url`: for now a path. `create` makes what a new repository needs.

    :raises UnsupportedUrlError: for any other kind of address.
    """
    text = str(url)
    if not text or "\0" in text:
        raise UnsupportedUrlError(url=repr(text), what="it is no path")
    scheme = _SCHEME.match(text)
    if scheme is None:
        if create and _has_other_files(Path(text)):
            raise UnsupportedUrlError(url=text, what="the folder holds other files")
        return DirectoryBackend(Path(text), create=create)
    if scheme[1].lower() == "s3":
        raise UnsupportedUrlError(url=text.partition("?")[0], what="s3:// is not supported yet")
    raise UnsupportedUrlError(url=text.partition("?")[0], what=f"{scheme[1]}:// is not known")
