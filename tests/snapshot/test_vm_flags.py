"""What the shadow's flags correct in the image, and what they can't."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cw_snapshot.snapshot import images, vm_flags
from cw_snapshot.snapshot.vm_flags import MappingChangedError, put_right

PRIVATE, GROWSDOWN, NORESERVE = 2, 0x100, 0x4000
START, END = 0x10000, 0x20000


class Image:
    """An mm image of one process in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *vmas: SimpleNamespace) -> None:
        self.mm = SimpleNamespace(vmas=list(vmas))
        self.stored = False
        monkeypatch.setattr(images, "load", lambda path, module, name: [self.mm])
        monkeypatch.setattr(images, "store", self._store)

    def _store(self, path: Path, entries: object) -> None:
        self.stored = True

    def put_right(self, flags: dict[tuple[int, int], str], saved: set[tuple[int, int]] | None = None) -> None:
        put_right(Path("images"), 7, flags, saved or set())


def vma(
    start: int = START,
    end: int = END,
    flags: int = PRIVATE,
    madv: int = 0,
    status: int = images.VMA_ANON_PRIVATE,
) -> SimpleNamespace:
    return SimpleNamespace(start=start, end=end, prot=3, flags=flags, status=status, madv=madv)


def test_what_agrees_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(monkeypatch, vma())
    image.put_right({(START, END): "rd wr mr mw me ac sd"})
    assert not image.stored


def test_advice_given_between_look_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(monkeypatch, vma(madv=1 << 15))
    image.put_right({(START, END): "rd wr hg nr"})
    (entry,) = image.mm.vmas
    assert image.stored
    assert entry.madv == 1 << 14
    assert entry.flags == PRIVATE | NORESERVE


def test_a_stack_begins_below_its_hidden_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(monkeypatch, vma(flags=PRIVATE | GROWSDOWN))
    image.put_right({(START + 4096, END): "rd wr gd"})
    assert not image.stored


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({}, "lacks it"),
        ({(START, END): "rd wr gd"}, "gd differs"),
        ({(START, END): "rd wr ht"}, "ht differs"),
        ({(START, END): "rd wr wf"}, "wiped"),
    ],
)
def test_what_a_copy_can_not_follow(
    monkeypatch: pytest.MonkeyPatch, flags: dict[tuple[int, int], str], why: str
) -> None:
    image = Image(monkeypatch, vma())
    with pytest.raises(MappingChangedError) as raised:
        image.put_right(flags)
    assert why in raised.value.evidence[0]
    assert not image.stored


def test_mappings_read_while_stopped_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(monkeypatch, vma())
    image.put_right({}, {(START, END)})
    with pytest.raises(MappingChangedError, match="changed"):
        image.put_right({}, {(START, END - 4096)})


def test_wipe_on_fork_is_restored_where_it_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """criu 4.1 does not note it, 4.2 notes what our table says."""
    image = Image(monkeypatch, vma())
    image.put_right({(START, END): "rd wr wf"}, {(START, END)})
    assert image.mm.vmas[0].madv == 1 << 18
    image.put_right({(START, END): "rd wr"}, {(START, END)})
    assert image.mm.vmas[0].madv == 0


def test_guard_regions_are_no_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """criu 4.2 has them behind the mappings, as if they were some."""
    guard = vma(START + 4096, START + 8192, flags=0, status=images.VMA_GUARD)
    image = Image(monkeypatch, vma(), guard)
    image.put_right({(START, END): "rd wr dc"}, {(START, END)})
    assert image.mm.vmas[0].madv == 1 << 10
    assert images.mappings_of(image.mm) == [image.mm.vmas[0]]


def test_the_table_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    """A process with flags longer than an entry gets its smaps from the kernel."""
    path = tmp_path / "flags"
    vm_flags.write_table(path, {7: {(START, END): "rd", (END, END + 1): "x" * 200}})
    assert path.read_bytes()[12:16] == (1).to_bytes(4, "little")
