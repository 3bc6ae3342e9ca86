from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_doubles import indexed_pack, random_ids

from cw_snapshot.storage.broker import LocalBroker
from cw_snapshot.storage.index import ChunkIndex
from cw_snapshot.storage.interfaces import Claim

IDS = random_ids(12)
INDEX = ChunkIndex([indexed_pack(IDS[:4])])


@given(st.lists(st.lists(st.integers(0, 11), max_size=20), max_size=5))
def test_answers(calls: list[list[int]]) -> None:
    broker, claimed = LocalBroker(INDEX), set()
    for call in calls:
        expected = []
        for number in call:
            if number < 4:
                expected.append(Claim.KNOWN)
            else:
                expected.append(Claim.PEER if number in claimed else Claim.YOURS)
                claimed.add(number)
        assert broker.claim([IDS[number] for number in call]) == expected


def test_each_chunk_is_given_away_once() -> None:
    ids, broker = random_ids(2000, 5), LocalBroker(ChunkIndex([]))
    answers: list[list[Claim]] = []
    barrier = threading.Barrier(4)

    def ask() -> None:
        barrier.wait()
        answers.append([answer for at in range(0, 2000, 50) for answer in broker.claim(ids[at : at + 50])])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for per_id in zip(*answers, strict=True):
        assert sorted(claim.value for claim in per_id) == ["peer", "peer", "peer", "yours"]


def test_lost_packs_are_not_known() -> None:
    pack = indexed_pack(IDS[:1])
    assert LocalBroker(ChunkIndex([pack], lost={pack.digest})).claim(IDS[:1]) == [Claim.YOURS]


def test_no_ids() -> None:
    assert LocalBroker(INDEX).claim([]) == []


@pytest.mark.parametrize("claim", Claim)
def test_values_are_stable(claim: Claim) -> None:
    assert claim.value == claim.name.lower()
