"""Reading logs piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cw_snapshot.coordinator import job_logs
from cw_snapshot.coordinator.cluster import NodeUnreachableError
from cw_snapshot.coordinator.job_logs import LogBlock, Prefixer, follow, read_to_present_end, tail_offset

NOW = timedelta()


@given(text=st.binary(max_size=200).map(lambda b: b.replace(b"\0", b"\n")), lines=st.integers(0, 8))
@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_tail(text: bytes, lines: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_logs, "_STEP", step)
        found = text[tail_offset(BytesIO(text), lines) :]
    whole = [line + b"\n" for line in text.split(b"\n")[:-1]] + [text.split(b"\n")[-1]]
    expected = [line for line in whole if line][-lines:] if lines else []
    assert found == b"".join(expected)


def test_a_growing_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "BLOCK", 4)
    pieces: Iterator[bytes] = iter([b"abcd", b"ef", b"", b"gh"])
    asked = []

    def read(offset: int, tail: int | None) -> LogBlock:
        asked.append((offset, tail))
        data = next(pieces)
        return LogBlock(data, offset + len(data), data == b"gh", "log")

    assert [block.data for block in read_to_present_end(read, 3)] == [b"abcd", b"ef"]
    assert asked == [(0, 3), (4, None)], "the tail is asked for once"
    asked.clear()
    assert list(follow({"n1": read}, None, NOW, print)) == [("n1", b"gh")]
    assert asked == [(0, None), (0, None)]


def test_a_node_that_does_not_answer_is_asked_again() -> None:
    answers: list[LogBlock | None] = [None, None, LogBlock(b"x\n", 2, True, "log")]
    told: list[str] = []

    def read(offset: int, tail: int | None) -> LogBlock:
        if (answer := answers.pop(0)) is None:
            raise NodeUnreachableError(node="n1", address="a", why="no route")
        return answer

    assert list(follow({"n1": read}, None, NOW, told.append)) == [("n1", b"x\n")]
    assert len(told) == 1


def test_whole_lines_with_their_source() -> None:
    prefixer = Prefixer(["n1", "n10"])
    assert prefixer.lines("n1", b"a\nb") == b"n1  | a\n"
    assert prefixer.lines("n10", b"c\n") == b"n10 | c\n"
    assert prefixer.lines("n1", b"d\n") == b"n1  | bd\n"
    prefixer.lines("n10", b"rest")
    assert prefixer.end() == b"n10 | rest\n"
