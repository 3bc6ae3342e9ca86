from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_strategies import damaged, survives

from cw_snapshot.errors import ExitCode
from cw_snapshot.storage.commit import (
    Commit,
    NodeManifest,
    SnapshotRef,
    check_identity,
    decode_commit,
    encode_commit,
    is_snapshot_id,
    new_snapshot_id,
)
from cw_snapshot.storage.documents import seal
from cw_snapshot.storage.errors import (
    BadIdentityError,
    CommitDamagedError,
    ForeignObjectError,
    IntegrityError,
    UnsupportedFormatError,
)

OWNER = "ab" * 16
COMMIT = Commit(
    job="job-1",
    snapshot="20261130T160742Z-1a2b3c4d",
    incarnation=2,
    created=datetime(2026, 11, 30, 16, 7, 42, 123456, tzinfo=UTC),
    nodes=(NodeManifest("node-0", "0" * 64, 10), NodeManifest("node-1", "f" * 64, 20)),
    indexes=("1" * 64,),
    name="before-lr-change",
    summary={"pause_ms": 24.5},
)


def changed(**fields: object) -> bytes:
    return seal(json.loads(encode_commit(COMMIT, OWNER)) | fields)


def test_round_trip() -> None:
    assert decode_commit(encode_commit(COMMIT, OWNER), COMMIT.ref, OWNER) == COMMIT


def test_names() -> None:
    assert COMMIT.ref.name == "snapshots/job-1/20261130T160742Z-1a2b3c4d"


def test_ids_are_utc_and_random() -> None:
    now = datetime(2026, 11, 30, 18, 7, 42, tzinfo=timezone(timedelta(hours=2)))
    one, other = new_snapshot_id(now), new_snapshot_id(now)
    assert one != other
    assert one.startswith("20261130T160742Z-")
    assert is_snapshot_id(one)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20261130T160742Z",
        "20261130T160742Z-1a2b3c4",
        "x20261130T160742Z-1a2b3c4d",
        "20261130T160742Z-1A2B3C4D",
    ],
)
def test_what_is_no_id(text: str) -> None:
    assert not is_snapshot_id(text)


@pytest.mark.parametrize("value", ["a", "A.b-c_d", "0", "x" * 64])
def test_good_identities(value: str) -> None:
    check_identity("job id", value)


@pytest.mark.parametrize("value", ["", ".a", "-a", "_a", "a/b", "a b", "ä", "x" * 65, "a\n", "../../etc"])
def test_bad_identities(value: str) -> None:
    with pytest.raises(BadIdentityError) as error:
        check_identity("job id", value)
    assert error.value.exit_code == ExitCode.USAGE
    with pytest.raises(BadIdentityError):
        encode_commit(Commit(value, COMMIT.snapshot, 0, COMMIT.created, ()), OWNER)
    with pytest.raises(BadIdentityError):
        encode_commit(Commit("job", COMMIT.snapshot, 0, COMMIT.created, (), name=value), OWNER)


def test_foreign() -> None:
    with pytest.raises(ForeignObjectError) as error:
        decode_commit(encode_commit(COMMIT, "cd" * 16), COMMIT.ref, OWNER)
    assert COMMIT.ref.name in error.value.message


def test_newer() -> None:
    with pytest.raises(UnsupportedFormatError):
        decode_commit(changed(schema="cw-snapshot/commit/2"), COMMIT.ref, OWNER)


def test_a_commit_under_another_name_is_refused() -> None:
    """Copied or renamed by hand, a commit would show a snapshot that nobody took."""
    with pytest.raises(CommitDamagedError, match="it is that of"):
        decode_commit(encode_commit(COMMIT, OWNER), SnapshotRef("other", COMMIT.snapshot), OWNER)


@pytest.mark.parametrize(
    "fields",
    [
        {"incarnation": -1},
        {"created": "yesterday"},
        {"nodes": {}},
        {"nodes": [1]},
        {"nodes": [{"node": "a/b", "manifest": "0" * 64, "size": 1}]},
        {"nodes": [{"node": "a", "manifest": "../x", "size": 1}]},
        {"nodes": [{"node": "a", "manifest": "0" * 64, "size": -1}]},
        {"indexes": ["x"]},
        {"indexes": [None]},
        {"name": "a b"},
        {"summary": []},
    ],
)
def test_senseless_commits(fields: dict[str, object]) -> None:
    with pytest.raises(CommitDamagedError):
        decode_commit(changed(**fields), COMMIT.ref, OWNER)


@given(st.integers(0, 8 * len(encode_commit(COMMIT, OWNER)) - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(encode_commit(COMMIT, OWNER))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(IntegrityError) as error:
        decode_commit(bytes(data), COMMIT.ref, OWNER)
    assert COMMIT.ref.name in error.value.message


@given(damaged(encode_commit(COMMIT, OWNER)) | st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    survives(lambda d: decode_commit(d, COMMIT.ref, OWNER), data)


def test_a_commit_that_could_not_be_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="allowed"):
        encode_commit(replace(COMMIT, summary={"x": "y" * (17 << 20)}), OWNER)
