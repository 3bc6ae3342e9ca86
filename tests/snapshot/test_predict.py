"""The model of a take's cost: more of anything never costs less, and each thing counts once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.snapshot.predict import (
    ForkSize,
    JobFacts,
    Pace,
    PauseParts,
    Rates,
    parallel,
    pause_parts,
    predict,
)

GIB = 1 << 30
RATES = Rates(100e6, "test")
COUNTS = st.integers(0, 10_000)
BYTES = st.integers(0, 64 * GIB)
FORKS = st.builds(
    ForkSize,
    small_pages=st.integers(0, 1 << 24),
    huge_pages=st.integers(0, 1 << 15),
    pinned_bytes=BYTES,
)
PACES = st.builds(
    Pace,
    page_seconds=st.floats(1e-9, 1e-6),
    byte_seconds=st.floats(1e-11, 1e-8),
    look_seconds=st.floats(1e-7, 1e-3),
    cores=st.integers(1, 256),
)
FACTS = st.builds(
    JobFacts,
    processes=st.integers(1, 300),
    threads=COUNTS,
    descriptors=COUNTS,
    connections=COUNTS,
    mappings=COUNTS,
    forks=st.lists(FORKS, min_size=1, max_size=20).map(tuple),
    private_bytes=BYTES,
    shared_bytes=BYTES,
    carried_bytes=BYTES,
    reserved_bytes=BYTES,
)
COSTS = (
    "threads",
    "descriptors",
    "connections",
    "mappings",
    "private_bytes",
    "shared_bytes",
    "carried_bytes",
    "reserved_bytes",
)
FEW = JobFacts(1, 1, 5, 0, 60, (ForkSize(4096, 0),), 16 << 20, 0, 0)


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


@given(FACTS, PACES, st.sampled_from(COSTS), st.integers(1, 1 << 40))
def test_more_costs_no_less(facts: JobFacts, pace: Pace, name: str, more: int) -> None:
    bigger = replace(facts, **{name: getattr(facts, name) + more})
    before, after = predict(facts, pace, RATES), predict(bigger, pace, RATES)
    assert after.pause_seconds >= before.pause_seconds
    assert after.durable_seconds >= before.durable_seconds
    assert after.read_bytes >= before.read_bytes
    assert after.extra_memory_bytes >= before.extra_memory_bytes


@given(FACTS, PACES, FORKS, st.integers(1, 100))
def test_a_process_more(facts: JobFacts, pace: Pace, fork: ForkSize, threads: int) -> None:
    forks = (*facts.forks, fork)
    bigger = replace(facts, processes=facts.processes + 1, threads=facts.threads + threads, forks=forks)
    assert pause_parts(bigger, pace).total > pause_parts(facts, pace).total


@given(FACTS, PACES, st.data())
def test_more_memory_in_one_process(facts: JobFacts, pace: Pace, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(facts.forks) - 1))
    name = data.draw(st.sampled_from(["small_pages", "huge_pages", "pinned_bytes"]))
    fork = facts.forks[index]
    bigger = replace(fork, **{name: getattr(fork, name) + data.draw(st.integers(1, 1 << 24))})
    forks = (*facts.forks[:index], bigger, *facts.forks[index + 1 :])
    before = pause_parts(facts, pace).total
    assert pause_parts(replace(facts, forks=forks), pace).total >= before * (1 - 1e-9)


@given(FACTS, PACES)
def test_the_parts_are_the_pause(facts: JobFacts, pace: Pace) -> None:
    prediction = predict(facts, pace, RATES)
    told = prediction.to_json()
    assert sum(told["pause_parts_seconds"].values()) == pytest.approx(told["pause_seconds"], abs=1e-3)
    assert all(getattr(prediction.parts, part.name) >= 0 for part in fields(PauseParts))


@given(FACTS, PACES, st.floats(1.0, 10.0))
def test_a_slower_machine_takes_longer(facts: JobFacts, pace: Pace, factor: float) -> None:
    slower = replace(
        pace,
        page_seconds=factor * pace.page_seconds,
        byte_seconds=factor * pace.byte_seconds,
        look_seconds=factor * pace.look_seconds,
    )
    assert pause_parts(facts, slower).total == close(factor * pause_parts(facts, pace).total)


@given(FACTS, PACES, st.floats(0, 1))
def test_a_job_that_computes_leaves_nothing_in_the_caches(facts: JobFacts, pace: Pace, busy: float) -> None:
    idle, working = pause_parts(facts, pace), pause_parts(replace(facts, busy=busy), pace)
    assert idle.total <= working.total <= 2 * idle.total
    assert working.shared == idle.shared, "copying is bound by memory"


@given(st.lists(st.floats(0, 1e3), max_size=20), st.integers(1, 64))
def test_forks_side_by_side(costs: list[float], cores: int) -> None:
    found = parallel(costs, cores)
    assert found <= sum(costs) + 1e-9
    assert found >= max(costs, default=0.0)
    assert parallel(costs, 1) == close(sum(costs))
    assert parallel(costs, cores + 1) <= found


def test_processes_share_the_cores() -> None:
    one = ForkSize(1 << 18, 0)
    four = replace(FEW, forks=(one,) * 4)
    alone = pause_parts(replace(FEW, forks=(one,)), Pace()).page_tables
    assert pause_parts(four, Pace(cores=1)).page_tables == close(4 * alone)
    assert pause_parts(four, Pace(cores=2)).page_tables == close(2 * alone)
    assert pause_parts(four, Pace(cores=64)).page_tables == close(alone)


def test_huge_pages_are_nearly_free() -> None:
    small = replace(FEW, forks=(ForkSize(1 << 18, 0),))
    huge = replace(FEW, forks=(ForkSize(0, 1 << 9),))
    assert pause_parts(huge, Pace()).huge_pages < pause_parts(small, Pace()).page_tables / 20
    assert small.forks[0].collapsed(512, 1 << 18) == huge.forks[0]


def test_pinned_memory_is_copied() -> None:
    pinned = replace(FEW, forks=(ForkSize(1 << 18, 0, pinned_bytes=GIB),))
    assert pause_parts(pinned, Pace()).pinned > 0.3
    assert pause_parts(pinned, Pace()).pinned > 10 * pause_parts(pinned, Pace()).page_tables


def test_what_history_says() -> None:
    plain = predict(FEW, Pace(), RATES)
    told = predict(FEW, Pace(), replace(RATES, pause_factor=1.5, stored_share=0.25))
    assert told.pause_seconds == close(1.5 * plain.pause_seconds)
    assert (plain.stored_bytes, told.stored_bytes) == (None, FEW.private_bytes // 4)
    assert told.stored_most_bytes == told.read_bytes
    late = predict(FEW, Pace(), RATES, spent_seconds=3.0)
    assert late.durable_seconds == close(plain.durable_seconds + 3.0)
    assert late.pause_seconds == plain.pause_seconds
