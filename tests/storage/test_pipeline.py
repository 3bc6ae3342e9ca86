from __future__ import annotations

import threading
import time

import pytest

from cw_snapshot.errors import InternalError
from cw_snapshot.storage.errors import StoppedError
from cw_snapshot.storage.pipeline import Channel, Crew, Monitor, Pool, run_crew


class Broken(Exception):  # noqa: N818
    pass


def test_a_crew_works_off_everything() -> None:
    done: list[int] = []
    run_crew(Monitor(), range(1000), lambda: done.append, name="t", threads=4)
    assert sorted(done) == list(range(1000))


def test_every_thread_is_initialised_before_it_works() -> None:
    ready = threading.local()
    calls: list[int] = []

    def init() -> None:
        ready.yes = True
        calls.append(1)

    def work(_: int) -> None:
        assert ready.yes

    run_crew(Monitor(), range(50), lambda: work, name="t", threads=3, worker_init=init)
    assert len(calls) == 3


@pytest.mark.parametrize("where", ["init", "worker", "work"])
def test_the_first_failure_stops_all_and_is_raised(where: str) -> None:
    done: list[int] = []

    def fail() -> None:
        raise Broken(where)

    def work(item: int) -> None:
        if where == "work" and item == 10:
            fail()
        done.append(item)

    def worker():  # type: ignore[no-untyped-def]
        if where == "worker":
            fail()
        return work

    init = fail if where == "init" else None
    with pytest.raises(Broken, match=where):
        run_crew(Monitor(), range(100_000), worker, name="t", threads=2, worker_init=init)
    assert len(done) < 100_000


def test_a_stopped_error_of_another_operation_is_a_failure_here() -> None:
    """Swallowed as "somebody else reports it", it would make an incomplete operation look complete."""

    def work(_: int) -> None:
        raise StoppedError(what="elsewhere")

    with pytest.raises(StoppedError, match="elsewhere"):
        run_crew(Monitor(), [1], lambda: work, name="t", threads=1)


def test_waits_end_when_the_operation_fails() -> None:
    monitor = Monitor()
    channel: Channel[int] = Channel(monitor)
    pool = Pool(monitor, object, 1)
    pool.take()
    seen: list[BaseException | None] = []

    def wait_for(thing: str) -> None:
        try:
            channel.get() if thing == "channel" else pool.take()
        except StoppedError as error:
            seen.append(error.__cause__)

    threads = [threading.Thread(target=wait_for, args=(thing,)) for thing in ("channel", "pool")]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    failure = Broken("first")
    monitor.fail(failure)
    monitor.fail(Broken("second"))
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert seen == [failure, failure]


def test_a_failure_is_raised_once_then_given_as_the_cause() -> None:
    monitor = Monitor()
    monitor.check()
    failure = Broken("x")
    monitor.fail(failure)
    with pytest.raises(Broken), monitor.reporting():
        monitor.check()
    for _ in range(2):
        with pytest.raises(StoppedError, match="Broken: x") as error, monitor.reporting():
            monitor.check()
        assert error.value.__cause__ is failure


def test_who_waits_reports_the_failure_that_nobody_raised() -> None:
    monitor = Monitor()
    failure = Broken("of a worker")
    monitor.fail(failure)
    with pytest.raises(Broken) as error, monitor.reporting(), monitor.changed:
        monitor.wait(lambda: False)
    assert error.value is failure


def test_an_error_inside_fails_the_operation_and_is_not_raised_again() -> None:
    monitor = Monitor()
    with pytest.raises(Broken), monitor.reporting():
        raise Broken("x")
    with pytest.raises(StoppedError):
        monitor.check()


def test_an_interrupt_ends_the_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    join = Crew.join
    calls = []

    def interrupted(self: Crew[int]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        release.set()
        join(self)

    monkeypatch.setattr(Crew, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_crew(Monitor(), range(1000), lambda: lambda _: release.wait(5), name="t", threads=2)
    assert len(calls) == 2


def test_a_pool_makes_no_more_than_its_limit() -> None:
    monitor, made = Monitor(), []
    pool = Pool(monitor, lambda: made.append(1) or object(), 3)

    def use(_: int) -> None:
        thing = pool.take()
        assert pool.taken <= 3
        pool.give(thing)

    run_crew(monitor, range(500), lambda: use, name="t", threads=8)
    assert 1 <= len(made) <= 3
    assert pool.taken == 0


def test_threads_that_can_not_be_started_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    monitor = Monitor()
    with pytest.raises(RuntimeError):
        Crew(monitor, Channel(monitor), lambda: lambda _: None, name="t", threads=4)
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("threads", [0, -1])
def test_nobody_at_work_is_an_error(threads: int) -> None:
    """Otherwise nothing would be done, and it would look like success."""
    with pytest.raises(InternalError):
        run_crew(Monitor(), [1], lambda: lambda _: None, name="t", threads=threads)
