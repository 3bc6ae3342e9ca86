from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_strategies import damaged, survives

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage.config import RepositoryConfig, decode_config, encode_config, new_config
from cw_snapshot.storage.cuts import ChunkerParams
from cw_snapshot.storage.documents import seal
from cw_snapshot.storage.errors import ConfigDamagedError, IntegrityError, UnsupportedFormatError

CONFIG = RepositoryConfig("ab" * 16, ChunkerParams(1 << 16, 1 << 19, seed=1 << 63), b"k" * 32, True)


def changed(**fields: object) -> bytes:
    """A sound config with other fields, sealed again."""
    return seal(json.loads(encode_config(CONFIG)) | fields)


def test_round_trip() -> None:
    assert decode_config(encode_config(CONFIG), "config") == CONFIG


def test_new_configs_are_random_and_keep_their_key_out_of_sight() -> None:
    one, other = new_config(conditional_writes=True), new_config(conditional_writes=True)
    assert one.key != other.key
    assert one.repository_id != other.repository_id
    assert one.chunker.seed != other.chunker.seed
    assert "key" not in repr(one)


def test_the_documented_fields() -> None:
    document = json.loads(encode_config(CONFIG))
    assert document["format"] == "cw-snapshot-repository"
    assert document["version"] == 1
    assert document["hash"] == {"algorithm": "blake3-keyed", "key": (b"k" * 32).hex()}
    assert document["capabilities"] == {"conditional_writes": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"chunker": {"algorithm": "page-cuts/2"}},
        {"hash": {"algorithm": "sha256"}},
    ],
)
def test_what_a_newer_version_wrote_is_refused_clearly(fields: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFormatError) as error:
        decode_config(changed(**fields), "config")
    assert error.value.exit_code == ExitCode.INTEGRITY
    assert "config has format" in error.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "other"},
        {"version": "1"},
        {"id": "x"},
        {"chunker": {"algorithm": "page-cuts/1", "average": 5, "maximum": 1 << 20, "seed": "0" * 16}},
        {"chunker": None},
        {"hash": {"algorithm": "blake3-keyed", "key": "00"}},
        {"capabilities": {"conditional_writes": 1}},
    ],
)
def test_senseless_configs(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigDamagedError):
        decode_config(changed(**fields), "config")


@given(st.integers(0, 8 * len(encode_config(CONFIG)) - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(encode_config(CONFIG))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(IntegrityError) as error:
        decode_config(bytes(data), "config")
    assert "config" in error.value.message


@given(damaged(encode_config(CONFIG)) | st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    survives(lambda d: decode_config(d, "config"), data)
