"""What every backend must pass. Inherit from `BackendConformance` and give a `backend` fixture."""

from __future__ import annotations

import threading

import pytest

from cw_snapshot.errors import InternalError
from cw_snapshot.storage.backend import Backend, StoredObject
from cw_snapshot.storage.errors import ObjectMissingError, ObjectTooShortError

BAD_NAMES = [
    "", ".", "..", "/", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".hidden", "a/.hidden", "-a", "_a",
    "a b", "a\0b", "a\nb", "a\n", "ä", "a\\b", "x" * 129, "/".join("abcdefghi"), "%2e%2e", "a:b", "~",
]  # fmt: skip
GOOD_NAMES = ["a", "a.b", "a-b_c", "A1/b2/c3", "x" * 128, "/".join("abcdefgh"), "1", "a..b"]


class BackendConformance:
    """The contract of :class:`Backend`, one promise per test."""

    def test_what_is_put_can_be_read(self, backend: Backend) -> None:
        backend.put("a/b", b"hello")
        assert bytes(backend.get_range("a/b")) == b"hello"
        assert backend.head("a/b") == 5

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_takes_any_bytes(self, backend: Backend, kind: type) -> None:
        backend.put("a", kind(b"hello"))
        assert bytes(backend.get_range("a")) == b"hello"

    def test_put_replaces(self, backend: Backend) -> None:
        backend.put("a", b"longer than the next")
        backend.put("a", b"next")
        assert bytes(backend.get_range("a")) == b"next"
        assert backend.head("a") == 4

    def test_put_may_be_repeated(self, backend: Backend) -> None:
        backend.put("a", b"x")
        backend.put("a", b"x")
        assert bytes(backend.get_range("a")) == b"x"

    def test_empty_objects(self, backend: Backend) -> None:
        backend.put("a", b"")
        assert backend.head("a") == 0
        assert bytes(backend.get_range("a")) == b""
        assert bytes(backend.get_range("a", 0, 0)) == b""

    def test_large_objects(self, backend: Backend) -> None:
        data = bytes(range(256)) * (3 << 12)
        backend.put("a", data)
        assert bytes(backend.get_range("a")) == data

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 3, b"012"),
            (4, 2, b"45"),
            (7, None, b"789"),
            (0, 10, b"0123456789"),
            (10, 0, b""),
            (10, None, b""),
        ],
    )
    def test_ranges(self, backend: Backend, offset: int, length: int | None, expected: bytes) -> None:
        backend.put("a", b"0123456789")
        assert bytes(backend.get_range("a", offset, length)) == expected

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, 11), (5, 6), (10, 1), (11, 0), (11, None), (1 << 40, 1)]
    )
    def test_a_range_beyond_the_end_is_refused(
        self, backend: Backend, offset: int, length: int | None
    ) -> None:
        backend.put("a", b"0123456789")
        with pytest.raises(ObjectTooShortError) as error:
            backend.get_range("a", offset, length)
        assert "a in" in error.value.message

    def test_missing_objects(self, backend: Backend) -> None:
        assert backend.head("a/b") is None
        with pytest.raises(ObjectMissingError) as error:
            backend.get_range("a/b")
        assert "a/b" in error.value.message

    def test_a_part_of_a_name_is_no_object(self, backend: Backend) -> None:
        backend.put("a/b", b"x")
        assert backend.head("a") is None
        assert backend.head("a/b/c") is None
        with pytest.raises(ObjectMissingError):
            backend.get_range("a/b/c")

    def test_put_if_absent_creates_once(self, backend: Backend) -> None:
        assert backend.put_if_absent("a/b", b"first")
        assert not backend.put_if_absent("a/b", b"second")
        assert bytes(backend.get_range("a/b")) == b"first"

    def test_put_if_absent_sees_put(self, backend: Backend) -> None:
        backend.put("a", b"first")
        assert not backend.put_if_absent("a", b"second")

    def test_put_if_absent_after_delete(self, backend: Backend) -> None:
        backend.put("a", b"first")
        backend.delete("a")
        assert backend.put_if_absent("a", b"second")

    def test_put_if_absent_has_one_winner(self, backend: Backend) -> None:
        for number in range(20):
            name, barrier, winners = f"race/{number}", threading.Barrier(8), []

            def compete(
                me: int, name: str = name, barrier: threading.Barrier = barrier, winners: list[int] = winners
            ) -> None:
                barrier.wait()
                if backend.put_if_absent(name, b"%d" % me * 1000):
                    winners.append(me)

            threads = [threading.Thread(target=compete, args=(me,)) for me in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(winners) == 1
            assert bytes(backend.get_range(name)) == b"%d" % winners[0] * 1000

    def test_list(self, backend: Backend) -> None:
        for name in ("a/1", "a/b/2", "ab/3", "c"):
            backend.put(name, name.encode())
        assert sorted(found.name for found in backend.list("")) == ["a/1", "a/b/2", "ab/3", "c"]
        assert sorted(found.name for found in backend.list("a/")) == ["a/1", "a/b/2"]
        assert list(backend.list("c/")) == []
        assert list(backend.list("nowhere/at/all/")) == []
        assert list(backend.list("ab/")) == [StoredObject("ab/3", 4)]

    def test_delete(self, backend: Backend) -> None:
        backend.put("a/b", b"x")
        backend.delete("a/b")
        assert backend.head("a/b") is None
        assert list(backend.list("")) == []
        backend.delete("a/b")
        backend.delete("never/was")

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_bad_names_are_refused_by_every_verb(self, backend: Backend, name: str) -> None:
        for verb in (
            lambda: backend.put(name, b""),
            lambda: backend.put_if_absent(name, b""),
            lambda: backend.get_range(name),
            lambda: backend.head(name),
            lambda: backend.delete(name),
        ):
            with pytest.raises(InternalError):
                verb()

    @pytest.mark.parametrize("prefix", ["a", "/", "../", "a/../", "./", ".tmp/", "a//"])
    def test_bad_prefixes_are_refused(self, backend: Backend, prefix: str) -> None:
        with pytest.raises(InternalError):
            list(backend.list(prefix))

    @pytest.mark.parametrize("name", GOOD_NAMES)
    def test_good_names(self, backend: Backend, name: str) -> None:
        backend.put(name, b"x")
        assert [found.name for found in backend.list("")] == [name]

    def test_readers_see_all_or_nothing(self, backend: Backend) -> None:
        """While an object is replaced again and again, readers see one version or the other."""
        versions = [b"a" * 300_000, b"b" * 100_000]
        backend.put("x", versions[0])
        stop = threading.Event()

        def replace() -> None:
            while not stop.is_set():
                for version in versions:
                    backend.put("x", version)

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            for _ in range(100):
                assert bytes(backend.get_range("x")) in versions
                assert backend.head("x") in (300_000, 100_000)
                assert [found.name for found in backend.list("")] == ["x"]
        finally:
            stop.set()
            thread.join()
