"""The config object: what a repository is and how it cuts and names chunks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.documents import Fields, check_seal, parse_object, seal
from cw_snapshot.storage.errors import ConfigDamagedError, UnsupportedFormatError

FORMAT = "cw-snapshot-repository"
VERSION = 1
CHUNKER = "page-cuts/1"
HASH = "blake3-keyed"

ID_SIZE = 16
KEY_SIZE = 32


@dataclass(frozen=True)
class RepositoryConfig:
    """Immutable after init, but for what the store is found to be capable of."""

    repository_id: str
    """32 hexadecimal digits; manifests, indexes and commits carry it."""
    chunker: ChunkerParams
    key: bytes = field(repr=False)
    """32 bytes that key the chunk ids."""
    conditional_writes: bool
    """Whether the store honours put_if_absent; some servers answer yes to everybody."""


def new_config(chunker: ChunkerParams | None = None, *, conditional_writes: bool) -> RepositoryConfig:
    """The config of a new repository, with a random id, key and (unless `chunker` is given) seed."""
    return RepositoryConfig(
        repository_id=secrets.token_hex(ID_SIZE),
        chunker=chunker or ChunkerParams(seed=secrets.randbits(64)),
        key=secrets.token_bytes(KEY_SIZE),
        conditional_writes=conditional_writes,
    )


def encode_config(config: RepositoryConfig) -> bytes:
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "id": config.repository_id,
        "chunker": {
            "algorithm": CHUNKER,
            "average": config.chunker.average,
            "maximum": config.chunker.maximum,
            "seed": f"{config.chunker.seed:016x}",
        },
        "hash": {"algorithm": HASH, "key": config.key.hex()},
        "capabilities": {"conditional_writes": config.conditional_writes},
    }
    return seal(document)


def decode_config(data: bytes, name: str) -> RepositoryConfig:
    """Parse the config object `name`.

    :raises UnsupportedFormatError: a newer version, or another algorithm, wrote it.
    :raises ConfigDamagedError: anything else that is not a config.
    """
    try:
        document = parse_object(data)
        fields = Fields(document)
        if fields.text("format") != FORMAT:
            raise ValueError("it is not the config of a repository")
        _require(name, f"version {fields.number('version')}", f"version {VERSION}")
        check_seal(document, data)
        chunker, hashing = fields.fields("chunker"), fields.fields("hash")
        _require(name, f"chunker {chunker.text('algorithm')[:40]}", f"chunker {CHUNKER}")
        _require(name, f"hash {hashing.text('algorithm')[:40]}", f"hash {HASH}")
        return RepositoryConfig(
            repository_id=fields.hex("id", ID_SIZE).hex(),
            chunker=ChunkerParams(
                average=chunker.number("average"),
                maximum=chunker.number("maximum"),
                seed=int.from_bytes(chunker.hex("seed", 8), "big"),
            ),
            key=hashing.hex("key", KEY_SIZE),
            conditional_writes=fields.fields("capabilities").flag("conditional_writes"),
        )
    except ValueError as error:
        raise ConfigDamagedError(name=name, what=str(error)) from error


def _require(name: str, found: str, supported: str) -> None:
    if found != supported:
        raise UnsupportedFormatError(name=name, found=found, supported=supported)
