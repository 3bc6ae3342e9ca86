"""Threads that work together and stop together: queues, pools and crews.

One `Monitor` belongs to one operation. Its invariant: once `failure` is set, every wait of the
operation ends at once with `StoppedError`, in whatever thread and for whatever it waits. So no
thread outlives the operation, and the first failure is the one that is reported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from cw_snapshot.errors import InternalError
from cw_snapshot.storage.errors import StoppedError

T = TypeVar("T")


class Monitor:
    """The lock of an operation, and its first failure."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards everything shared; notified whenever anything that somebody may wait for changed."""
        self.failure: BaseException | None = None
        self._reported = False

    def fail(self, error: BaseException, *, reported: bool = False) -> None:
        """Stop everything because of `error`, unless something failed before.

        :param reported: the caller is about to raise `error` to the operation's caller itself.
        """
        with self.changed:
            if self.failure is None:
                self.failure = error
                self._reported = reported
            self.changed.notify_all()

    def check(self) -> None:
        """Raise the failure if there is one: the first time itself, then as the cause of `StoppedError`."""
        with self.changed:
            failure, was_reported = self.failure, self._reported
            self._reported = True
        if failure is None:
            return
        if not was_reported:
            raise failure
        raise StoppedError(what=_summary(failure)) from failure

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Around what the operation's caller calls: an error inside fails the operation.

        What comes out is the first failure if nobody raised it yet, else a `StoppedError` with it
        as the cause.
        """
        try:
            yield
        except BaseException as error:
            self.fail(error, reported=True)
            if self.failure is not error and isinstance(error, StoppedError):
                self.check()
            raise

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`. The caller holds `changed`.

        :raises StoppedError: the operation failed.
        """
        self.changed.wait_for(lambda: self.failure is not None or ready())
        if self.failure is not None:
            raise StoppedError(what=_summary(self.failure)) from self.failure


class Channel(Generic[T]):
    """A queue from many threads to many. Not bounded: what goes through it is, by a `Pool`."""

    def __init__(self, monitor: Monitor, items: Iterable[T] = ()) -> None:
        self._monitor = monitor
        self._items = deque(items)
        self._closed = False

    def put(self, item: T) -> None:
        with self._monitor.changed:
            self._items.append(item)
            self._monitor.changed.notify_all()

    def close(self) -> None:
        """Nothing more comes: readers end when the queue is empty."""
        with self._monitor.changed:
            self._closed = True
            self._monitor.changed.notify_all()

    def get(self) -> T | None:
        """The next item, or None when the queue is closed and empty."""
        with self._monitor.changed:
            self._monitor.wait(lambda: bool(self._items) or self._closed)
            return self._items.popleft() if self._items else None


class Pool(Generic[T]):
    """Reusable things, made when first needed, at most `limit` of them at any time."""

    def __init__(self, monitor: Monitor, make: Callable[[], T], limit: int) -> None:
        self._monitor = monitor
        self._make = make
        self._limit = limit
        self._made = 0
        self._free: list[T] = []

    @property
    def available(self) -> bool:
        """Whether `take` would not wait. The caller holds the monitor's lock."""
        return bool(self._free) or self._made < self._limit

    @property
    def taken(self) -> int:
        """How many are in use. The caller holds the monitor's lock."""
        return self._made - len(self._free)

    def take(self) -> T:
        with self._monitor.changed:
            self._monitor.wait(lambda: self.available)
            if self._free:
                return self._free.pop()
            self._made += 1
        return self._make()

    def give(self, item: T) -> None:
        with self._monitor.changed:
            self._free.append(item)
            self._monitor.changed.notify_all()


class Crew(Generic[T]):
    """Threads that work off a channel until it is closed or the operation fails."""

    def __init__(
        self,
        monitor: Monitor,
        channel: Channel[T],
        worker: Callable[[], Callable[[T], None]],
        *,
        name: str,
        threads: int,
        worker_init: Callable[[], None] | None = None,
    ) -> None:
        """Start `threads` threads. Each calls `worker_init`, then `worker` for what works on its items."""
        if threads < 1:  # nobody would do the work, and nobody would notice
            raise InternalError(what=f"{threads} threads can't do any work")
        self._monitor = monitor
        self._channel = channel
        self._worker = worker
        self._worker_init = worker_init
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for started, thread in enumerate(self._threads):
            try:
                thread.start()
            except BaseException as error:  # no more threads: end those that run
                self._threads = self._threads[:started]
                monitor.fail(error, reported=True)
                raise

    def join(self) -> None:
        """Wait until all threads have ended. They do when the channel is closed or the operation fails."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            if self._worker_init is not None:
                self._worker_init()
            work = self._worker()
            while (item := self._channel.get()) is not None:
                work(item)
        except BaseException as error:  # a thread has nobody to raise it to
            self._monitor.fail(error)


def run_crew(
    monitor: Monitor,
    items: Iterable[T],
    worker: Callable[[], Callable[[T], None]],
    *,
    name: str,
    threads: int,
    worker_init: Callable[[], None] | None = None,
) -> None:
    """Work off `items` by a crew; raise the first failure when all its threads have ended."""
    channel = Channel(monitor, items)
    channel.close()
    crew = Crew(monitor, channel, worker, name=name, threads=threads, worker_init=worker_init)
    try:
        with monitor.reporting():
            crew.join()
            monitor.check()
    finally:
        crew.join()


def _summary(error: BaseException) -> str:
    return getattr(error, "message", None) or f"{type(error).__name__}: {error}"
