"""What is known of files: build-ids, digests, and when a digest counts."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from blake3 import blake3

from cw_snapshot.snapshot import carried_files, file_evidence, job_facts, procfs, tree
from cw_snapshot.snapshot.build_ids import build_id
from cw_snapshot.snapshot.carried_files import CarriedBytes
from cw_snapshot.snapshot.file_evidence import (
    FileRecord,
    PauseSpentError,
    SharedFileMissedError,
    StopEvidence,
)
from cw_snapshot.snapshot.file_restore import (
    FilesDifferError,
    ImageEdit,
    PourFile,
    apply,
    decide_all,
    observe,
    refuse_if_needed,
)
from cw_snapshot.snapshot.file_rules import Act, FilePolicy

ROOT = Path("/")


def record(path: Path, flags: int = 1, **more: object) -> FileRecord:
    size = path.stat().st_size
    made = FileRecord(1, str(path), flags, pos=size, size=size, mode=path.stat().st_mode)
    return replace(made, **more)  # type: ignore[arg-type]


def evidence(path: Path, flags: int = 1, mapped: bool = False) -> FileRecord:
    found = file_evidence.at_stop([record(path, flags)], ROOT, {str(path)} if mapped else set())
    return file_evidence.after_go(found, ROOT, {1} if mapped else set())[0]


def nothing(_: FileRecord, target: Path) -> None:
    raise AssertionError(target)


def from_memory(found: StopEvidence) -> PourFile:
    def pour(record: FileRecord, target: Path) -> None:
        with target.open("xb") as file:
            file.write(content(found.carried[record.carried]))

    return pour


def content(carried: CarriedBytes) -> bytes:
    data = bytearray(-(-carried.size // 4096) * 4096)
    for start, size in carried.runs():
        carried.read_into(start, memoryview(data)[start : start + size])
    return bytes(data[: carried.size])


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/cw-test-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def test_holes_are_not_carried(shared_memory: Path) -> None:
    size = (200 << 20) + 5
    with shared_memory.open("wb") as file:
        file.write(b"first")
        file.seek(100 << 20)
        file.write(os.urandom(10000))
        file.truncate(size)
    found = file_evidence.at_stop([record(shared_memory, flags=2)], ROOT, set())
    (carried,) = found.carried.values()
    assert sum(size for _, size in carried.runs()) == 4 * 4096
    assert content(carried) == shared_memory.read_bytes()
    (seen,) = file_evidence.after_go(found, ROOT, {1})
    assert not seen.sampled
    assert decide_all([replace(seen, mtime_ns=1)], FilePolicy.REFUSE)[0].act is Act.USE
    with shared_memory.open("r+b") as file:
        file.seek(150 << 20)
        file.write(b"x")
    assert decide_all([replace(seen, mtime_ns=1)], FilePolicy.REFUSE)[0].act is Act.REFUSE


def test_the_bytes_of_a_carried_file_in_any_pieces() -> None:
    data = os.urandom(3 * 4096 + 5)
    carried = CarriedBytes([(0, data[:8192]), (8192, data[8192:])], len(data))
    assert carried.runs() == [(0, 8192), (8192, 8192)]
    buffer = memoryview(bytearray(3 * 4096))
    carried.read_into(4096, buffer)
    assert bytes(buffer) == (data[4096:] + bytes(4096))[: len(buffer)]
    assert carried.digest() == blake3(data).hexdigest()


def test_reading_ends_with_the_pause(shared_memory: Path) -> None:
    shared_memory.write_bytes(b"shared")
    with pytest.raises(PauseSpentError, match=shared_memory.name):
        file_evidence.at_stop([record(shared_memory)], ROOT, set(), timedelta)


def test_what_is_carried_is_seen_before(shared_memory: Path) -> None:
    pid = os.getpid()
    with shared_memory.open("wb") as file:
        file.write(bytes(1 << 20))
        file.truncate(1 << 30)
    with shared_memory.open("rb"):
        assert not carried_files.find(pid, procfs.descriptors(pid), [])
    before = job_facts.read(tree.find(pid))
    with shared_memory.open("r+b") as file:
        (found,) = carried_files.find(pid, procfs.descriptors(pid), [])
        assert (found.size, found.stored_bytes, found.mapped) == (1 << 30, 1 << 20, False)
        assert found.where == f"fd {file.fileno()} -> {shared_memory}"
        with mmap.mmap(file.fileno(), 1 << 20) as view:
            view[:4096] = b"x" * 4096
            (found,) = carried_files.find(pid, procfs.descriptors(pid), procfs.mappings(pid))
            assert found.mapped
            after = job_facts.read(tree.find(pid))
    assert after.carried_bytes == before.carried_bytes + (1 << 20)
    assert after.shared_bytes == before.shared_bytes
    assert after.mappings >= 10


def test_build_id_is_that_of_the_toolchain(tmp_path: Path) -> None:
    source = tmp_path / "x.c"
    source.write_text("int x;")
    library = tmp_path / "x.so"
    identity = "0123456789abcdef0123456789abcdef01234567"
    command = ["gcc", "-shared", "-fPIC", f"-Wl,--build-id=0x{identity}", "-o", library, source]
    subprocess.run(command, check=True)
    assert build_id(library) == identity
    assert build_id(source) == ""


def test_digest_of_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("abc")
    before = evidence(path)
    assert before.digest
    with path.open("a") as file:
        file.write("def")
    now = observe(before)
    assert now.size == 6
    assert now.same_prefix
    path.write_text("aXcdef")
    assert observe(before).same_prefix is False


def test_a_file_that_changes_while_it_is_digested_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(os.urandom((1 << 20) + 1))
    stopped = file_evidence.at_stop([record(path)], ROOT, set())
    assert stopped.records[0].digest == "", "too large to be read during the stop"
    assert file_evidence.after_go(stopped, ROOT, set())[0].digest
    path.write_bytes(b"changed")
    assert file_evidence.after_go(stopped, ROOT, set())[0].digest == ""


def test_a_file_that_is_replaced_before_it_is_digested_is_not_known(tmp_path: Path) -> None:
    path, other = tmp_path / "data", tmp_path / "other"
    path.write_bytes(b"as it was")
    stopped = file_evidence.at_stop([record(path, flags=0)], ROOT, set())
    other.write_bytes(b"as it is!")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    other.replace(path)
    (seen,) = file_evidence.after_go(stopped, ROOT, set())
    assert (seen.digest, seen.mtime_ns) == ("", times[1])
    (decision,) = decide_all([seen], FilePolicy.REFUSE)
    assert decision.act is Act.REFUSE
    assert "replaced or written to" in decision.why
    os.utime(path, ns=times)
    assert file_evidence.after_go(stopped, ROOT, set())[0].digest == "", "times alone do not make it the same"


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.write_text("before")
    assert file_evidence.absolute(os.fsencode(path)) == str(path)
    seen = evidence(path)
    path.write_text("before and after")
    edits = apply(
        decide_all([seen], FilePolicy.REDIRECT),
        pour=nothing,
        redirect_to=tmp_path / "elsewhere",
        tag="t",
        notes=[],
    )
    name = edits[1].name
    assert name is not None
    assert name.encode().endswith(rb"caf\xe9")
    assert Path(name).read_text() == "before"


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a FIFO"), (os.mkdir, "a directory")])
@pytest.mark.parametrize("flags", [0, 1, os.O_WRONLY | os.O_APPEND])
def test_what_is_no_file_is_refused_and_not_opened(
    tmp_path: Path, make: Callable[[Path], None], what: str, flags: int
) -> None:
    path = tmp_path / "data"
    path.write_text("")
    seen = evidence(path, flags)
    path.unlink()
    make(path)
    for policy in FilePolicy:
        (decision,) = decide_all([seen], policy, own_log=str(path))
        assert decision.act is Act.REFUSE
        assert decision.why == f"it is {what} now"


def test_a_file_that_can_t_be_rewritten_stays_as_it_is(shared_memory: Path) -> None:
    shared_memory.write_bytes(b"shared")
    found = file_evidence.at_stop([record(shared_memory)], ROOT, set())
    shared_memory.write_bytes(b"other!")
    decisions = decide_all(found.records, FilePolicy.REWIND)

    def fails(_: FileRecord, target: Path) -> None:
        target.write_bytes(b"sh")
        raise OSError("no space")

    notes: list[str] = []
    with pytest.raises(OSError, match="no space"):
        apply(decisions, pour=fails, redirect_to=None, tag="t", notes=notes)
    assert shared_memory.read_bytes() == b"other!"
    assert list(shared_memory.parent.glob(f"{shared_memory.name}*")) == [shared_memory]
    assert notes == []


def test_samples_prove_a_difference_and_never_sameness(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    with path.open("wb") as file:
        file.truncate(file_evidence._FULL_DIGEST_BYTES + 1)
    seen = evidence(path, flags=0)
    assert seen.sampled
    assert decide_all([seen], FilePolicy.REFUSE)[0].act is Act.USE
    with path.open("r+b") as file:
        file.seek((1 << 20) - 5)  # between two samples
        file.write(b"x")
    (decision,) = decide_all([seen], FilePolicy.REFUSE)
    assert decision.act is Act.REFUSE
    assert f"touch -d @{seen.mtime_ns // 10**9}." in decision.why
    subprocess.run(["sh", "-c", decision.why.partition("back: ")[2]], check=True)
    assert path.stat().st_mtime_ns == seen.mtime_ns
    assert decide_all([seen], FilePolicy.REFUSE)[0].act is Act.USE


def test_times_prove_nothing_for_a_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(bytes((1 << 20) + 1))
    seen = evidence(path, mapped=True)
    assert seen.mapped
    assert seen.digest == "", "it can change while it is read and show the same times"
    assert decide_all([seen], FilePolicy.REFUSE)[0].act is Act.REFUSE


def test_a_file_that_was_mapped_in_the_last_moment(tmp_path: Path) -> None:
    on_disk = tmp_path / "mapped"
    on_disk.write_bytes(b"x")
    seen = file_evidence.at_stop([record(on_disk, flags=0)], ROOT, set())
    assert file_evidence.after_go(seen, ROOT, {1})[0].digest == "", "its content can't be proved"
    in_memory = Path(f"/dev/shm/cw-test-late-{os.getpid()}")
    in_memory.write_bytes(b"x")
    try:
        seen = file_evidence.at_stop([record(in_memory, flags=0)], ROOT, set())
        with pytest.raises(SharedFileMissedError):
            file_evidence.after_go(seen, ROOT, {1})
    finally:
        in_memory.unlink()


def test_files_on_a_tmpfs_are_carried() -> None:
    path = Path(f"/dev/shm/cw-test-{os.getpid()}")
    path.write_bytes(b"shared")
    try:
        found = file_evidence.at_stop([record(path), record(path, flags=0, id=2)], ROOT, set())
        assert [content(data) for data in found.carried.values()] == [b"shared"]
        assert [r.carried for r in found.records] == ["file/0", "file/0"], "one file, whoever opened it"
        path.unlink()
        decisions = decide_all(found.records, FilePolicy.REFUSE)
        assert [d.act for d in decisions] == [Act.CREATE, Act.CREATE]
        apply(decisions, pour=from_memory(found), redirect_to=None, tag="t", notes=[])
        assert path.read_bytes() == b"shared"
    finally:
        path.unlink(missing_ok=True)


def test_rewriting_does_not_reach_into_a_stranger_s_mapping() -> None:
    path = Path(f"/dev/shm/cw-test-{os.getpid()}")
    saved = path.with_name(f"{path.name}.cw-t")
    path.write_bytes(b"shared")
    try:
        found = file_evidence.at_stop([record(path)], ROOT, set())
        path.write_bytes(b"other!")
        with path.open("rb") as stranger, mmap.mmap(stranger.fileno(), 0, prot=mmap.PROT_READ) as seen:
            decisions = decide_all(found.records, FilePolicy.REWIND)
            assert [d.act for d in decisions] == [Act.REWRITE]
            apply(decisions, pour=from_memory(found), redirect_to=None, tag="t", notes=[])
            assert seen[:] == b"other!"
        assert path.read_bytes() == b"shared"
        assert saved.read_bytes() == b"other!"
    finally:
        path.unlink(missing_ok=True)
        saved.unlink(missing_ok=True)


def test_rewind_saves_the_tail(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    seen = evidence(path)
    path.write_text("before and after")
    decisions = decide_all([seen], FilePolicy.REWIND)
    notes: list[str] = []
    edits = apply(decisions, pour=nothing, redirect_to=None, tag="snap", notes=notes)
    assert path.read_text() == "before"
    assert (tmp_path / "out.cw-tail-snap").read_text() == " and after"
    assert edits == {}
    assert "out.cw-tail-snap" in notes[0]


def test_keep_goes_on_at_the_new_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    sequential = evidence(path)
    elsewhere = replace(sequential, id=2, pos=3)
    path.write_text("before and after")
    edits = apply(
        decide_all([sequential, elsewhere], FilePolicy.KEEP),
        pour=nothing,
        redirect_to=None,
        tag="t",
        notes=[],
    )
    assert edits == {1: ImageEdit(any_size=True, pos=16), 2: ImageEdit(any_size=True)}
    assert path.read_text() == "before and after"


def test_redirect_copies_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    seen = evidence(path)
    path.write_text("before and after")
    target = tmp_path / "elsewhere"
    edits = apply(
        decide_all([seen], FilePolicy.REDIRECT), pour=nothing, redirect_to=target, tag="t", notes=[]
    )
    copy = target / str(path).lstrip("/")
    assert copy.read_text() == "before"
    assert path.read_text() == "before and after"
    assert edits == {1: ImageEdit(name=str(copy))}


def test_a_refusal_lists_every_file(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("before")
    seen = [replace(evidence(path), id=index) for index, path in enumerate(paths)]
    paths[0].write_text("before and after")
    paths[1].unlink()
    with pytest.raises(FilesDifferError) as caught:
        refuse_if_needed(decide_all(seen, FilePolicy.REFUSE), ["/nowhere"])
    text = "\n".join(caught.value.evidence)
    assert "one: it grew from 6 to 16 bytes" in text
    assert "two: it does not exist" in text
    assert "/nowhere" in text
