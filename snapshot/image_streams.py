"""The streams of a snapshot that are files: criu's images, and the job's files that are carried."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cw_snapshot.snapshot import family_images
from cw_snapshot.snapshot.carried_files import CarriedBytes
from cw_snapshot.snapshot.shadow_pages import Stream
from cw_snapshot.snapshot.spool import FileBytes


def image_streams(folder: Path, carried: Mapping[str, CarriedBytes]) -> list[Stream]:
    """Streams of what is in criu's image folder, and of `carried` files by their names."""
    files = {f"image/{path.name}": path for path in sorted(folder.glob("*.img"))}
    families = sorted((folder / family_images.FOLDER).glob("*.img"))
    files |= {f"{family_images.FOLDER}/{path.name}": path for path in families}
    sources: dict[str, FileBytes | CarriedBytes] = {name: FileBytes(path) for name, path in files.items()}
    sources |= carried
    return [Stream(name, source, "meta", source.size) for name, source in sources.items()]
