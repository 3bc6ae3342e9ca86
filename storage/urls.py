"""From a repository's address to its backend."""

from __future__ import annotations

import re
from pathlib import Path

from cw_snapshot.storage.backend import Backend
from cw_snapshot.storage.directory import DirectoryBackend
from cw_snapshot.storage.errors import UnsupportedUrlError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)


def open_backend(url: str | Path, *, create: bool = False) -> Backend:
    """The backend at `url`: for now a path. `create` makes what a new repository needs.

    :raises UnsupportedUrlError: for any other kind of address.
    """
    text = str(url)
    if not text or "\0" in text:
        raise UnsupportedUrlError(url=repr(text), what="it is no path")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return DirectoryBackend(Path(text), create=create)
    if scheme[1].lower() == "s3":
        raise UnsupportedUrlError(url=text.partition("?")[0], what="s3:// is not supported yet")
    raise UnsupportedUrlError(url=text.partition("?")[0], what=f"{scheme[1]}:// is not known")
