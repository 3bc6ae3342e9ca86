"""GNU build-ids: what a program or a library is, whatever its times say."""

from __future__ import annotations

import struct
from pathlib import Path

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3
_MAX_NOTE_BYTES = 1 << 16


def build_id(path: Path) -> str:
    """GNU build-id of a 64-bit ELF file as hex, or empty. criu checks the same (files-reg.c)."""
    try:
        with path.open("rb") as file:
            header = file.read(_ELF_HEADER.size)
            if len(header) < _ELF_HEADER.size or header[:6] != b"\x7fELF\x02\x01":
                return ""
            fields = _ELF_HEADER.unpack(header)
            offset, entry_size, count = fields[5], fields[9], fields[10]
            for index in range(count):
                file.seek(offset + index * entry_size)
                kind, _, at, _, _, size, _, _ = _PROGRAM_HEADER.unpack(file.read(_PROGRAM_HEADER.size))
                if kind == _PT_NOTE and size <= _MAX_NOTE_BYTES:
                    file.seek(at)
                    if found := _build_id_note(file.read(size)):
                        return found
    except (OSError, struct.error):
        return ""
    return ""


def _build_id_note(notes: bytes) -> str:
    at = 0
    while at + _NOTE.size <= len(notes):
        name_size, size, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        data_at = name_at + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0":
            return notes[data_at : data_at + size].hex()
        at = data_at + (size + 3) // 4 * 4
    return ""
