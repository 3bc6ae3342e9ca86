"""What images tell of files: which are evidence, and what criu calls its ghosts of deleted ones."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from cw_snapshot.snapshot import file_evidence, ghosts, images
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.restore import NodeRestore

_HEADER = struct.pack("<II", 0x54564319, 0)


def write(folder: Path, names: dict[int, tuple[bytes, int]], remaps: list[tuple[int, int, int]]) -> None:
    """files.img with a name and a mode for each id, remap-fpath.img with orig_id, remap_id, type."""
    entries = []
    for number, (name, mode) in names.items():
        entry = images.message("fdinfo", "file_entry")(type=1, id=number)
        entry.reg.SetInParent()
        reg = entry.reg
        reg.id, reg.flags, reg.pos, reg.name, reg.mode, reg.size = number, 0, 0, "NAME", mode, 0
        fown = reg.fown
        fown.uid = fown.euid = fown.signum = fown.pid_type = fown.pid = 0
        # Only bytes as criu writes them give a name that is not UTF-8.
        length = bytes([len(name)])
        data = entry.reg.SerializeToString().replace(b"\x04NAME", length + name)
        entry.reg.ParseFromString(data)
        entries.append(entry)
    (folder / "files.img").write_bytes(_HEADER)
    images.store(folder / "files.img", entries)
    made = images.message("remap_file_path", "remap_file_path_entry")
    (folder / "remap-fpath.img").write_bytes(_HEADER)
    images.store(
        folder / "remap-fpath.img", [made(orig_id=o, remap_id=r, remap_type=t) for o, r, t in remaps]
    )


REG, DIR = stat.S_IFREG | 0o600, stat.S_IFDIR | 0o700


def test_what_is_evidence(tmp_path: Path) -> None:
    names = {
        1: (b"/data", REG),
        2: (b"/proc/29999/stat", REG),
        3: (b"/sys/kernel/mm/x", REG),
        4: (b"/gone", REG),
        5: (b"/home", DIR),
        6: (b"/proc/29999/fd", DIR),
        7: (b"/gone-folder", DIR),
        8: (b"/caf\xe9", REG),
    }
    write(tmp_path, names, [(4, 1, 1), (7, 2, 1)])
    assert [r.path for r in file_evidence.records(tmp_path)] == ["/data", "/caf\udce9"]
    assert file_evidence.directories(tmp_path) == ["/home"]


def test_ghosts_are_called_as_criu_does(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    names = {
        1: (os.fsencode(tmp_path / "there/x"), REG),
        2: (os.fsencode(tmp_path / "missing/folder/y"), REG),
        3: (os.fsencode(tmp_path / "there/linked"), REG),
        4: (os.fsencode(tmp_path / "there/kept"), REG),
    }
    write(tmp_path, names, [(1, 26, 1), (2, 2, 1), (3, 3, 0)])
    found = ghosts.names(tmp_path)
    assert found == [tmp_path / "there/x.cr.1a.ghost", tmp_path / "y.cr.2.ghost"]
    for path in [*found, tmp_path / "there/x.cr.1b.ghost"]:
        path.touch()
    ghosts.remove(found)
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["x.cr.1b.ghost"]
    (tmp_path / "remap-fpath.img").unlink()
    assert ghosts.names(tmp_path) == []


def test_a_failed_restore_removes_its_ghosts(tmp_path: Path) -> None:
    """criu does so itself, unless it was killed."""
    ghost = tmp_path / "x.cr.1.ghost"
    ghost.touch()
    node = NodeRestore({"files": []}, criu=Criu(Path("criu"), (4, 1), Path()))
    node._ghosts = [ghost]
    node.abort()
    assert not ghost.exists()
