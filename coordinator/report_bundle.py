"""The bundle of a bug report about one operation: what is known of it, with secrets hidden.

Made also when the operation is under way or has died, and when half of what it should hold is not
there: what is missing is told, never a reason to give no report.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cw_snapshot.coordinator.jobs import JobStore, to_json
from cw_snapshot.coordinator.leftovers import find_leftovers
from cw_snapshot.coordinator.operation_records import (
    PROGRESS,
    RECORD,
    operation_of_snapshot,
    read_progress,
    read_record,
    standing,
)
from cw_snapshot.coordinator.operations import open_log
from cw_snapshot.coordinator.redaction import HIDDEN, Redactor
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.tree_document import tree_documents
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import describe, machine_facts, procfs
from cw_snapshot.snapshot import tree as trees
from cw_snapshot.snapshot.machine_checks import all_checks
from cw_snapshot.snapshot.work_folder import work_folder_of
from cw_snapshot.storage.repository import Repository

LOG_MOST = 8 << 20
"""Bytes of one log; of a longer one its head and its tail."""


class ReportExistsError(CwError):
    """{path} exists.

    Fix: --force replaces it, --output writes to another place.
    """

    exit_code = ExitCode.REFUSED


@dataclass(slots=True)
class Bundle:
    """A report's members, ready to be written."""

    operation: str
    kind: str
    job: str
    standing: str
    """The operation's outcome, `running` or `died`."""
    members: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """What is not inside, and why."""
    redacted: dict[str, int] = field(default_factory=dict)
    """How many secrets of each kind were hidden."""

    @property
    def name(self) -> str:
        return f"cw-snapshot-report-{self.operation}"

    def archive(self) -> bytes:
        """The members as a .tar.gz, below one folder of the report's name."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for name, text in self.members.items():
                data = text.encode(errors="backslashreplace")  # names that are not UTF-8
                info = tarfile.TarInfo(f"{self.name}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue()


def head_and_tail(path: Path, most: int = LOG_MOST) -> str:
    """A log, and of one that is longer than `most` bytes half of it from each end, in whole lines: a line
    that is cut could hold a part of a secret, which nothing would recognise."""
    with open_log(path) as log:
        head = log.read(most + 1)
        if len(head) <= most:
            return head.decode(errors="replace")
        head = head[: most // 2].rpartition(b"\n")[0]
        end = log.seek(0, os.SEEK_END)
        log.seek(end - most // 2)
        tail = log.read(most // 2).partition(b"\n")[2]
    left_out = end - len(head) - len(tail)
    middle = f"\n\n[... {left_out} bytes left out ...]\n\n"
    return head.decode(errors="replace") + middle + tail.decode(errors="replace")


def make_report(folder: Path, settings: Settings, *, log_most: int = LOG_MOST) -> Bundle:
    """Collect everything about the operation whose record is in `folder`."""
    return _Report(folder, settings, log_most).make()


class _Report:
    """One report, while it is made."""

    def __init__(self, folder: Path, settings: Settings, log_most: int) -> None:
        self._folder = folder
        self._settings = settings
        self._log_most = log_most
        self._record = read_record(folder)
        self._redactor = Redactor()
        self._members: dict[str, Any] = {}
        self._bundle = Bundle(
            folder.name,
            str(self._record.get("kind", "unknown")),
            str(self._record.get("job", "unknown")),
            standing(self._record),
        )

    def make(self) -> Bundle:
        bundle, redactor = self._bundle, self._redactor
        # First what tells which values are secret.
        self._add("tree.json", self._tree)
        self._add("job.json", self._job)
        self._add(RECORD, self._operation)
        self._add(PROGRESS, lambda: read_progress(self._folder) or None)
        self._add("take-of-the-snapshot.json", self._take)
        self._add("settings.json", lambda: {"now": self._settings.to_json(), "variables": _variables()})
        self._add(
            "versions.json", lambda: {"cw_snapshot": version("cw-snapshot"), **machine_facts.versions()}
        )
        self._add("machine.json", machine_facts.machine)
        self._add("doctor.json", _doctor)
        self._logs(self._folder, "logs")
        if bundle.standing in ("running", "died"):
            self._logs(work_folder_of(bundle.operation) / "images", "work")
            self._add("work/guard", lambda: self._log(work_folder_of(bundle.operation) / "guard"))
        found = {name: redactor.everywhere(value) for name, value in self._members.items()}
        bundle.missing = redactor.everywhere(bundle.missing)
        bundle.job = redactor.everywhere(bundle.job)
        bundle.redacted = {kind: count for kind, count in redactor.counts.items() if count}
        bundle.members = {"README.txt": readme(bundle, self._record, found)}
        bundle.members |= {
            name: value if isinstance(value, str) else _json(value) for name, value in found.items()
        }
        return bundle

    def _add(self, name: str, make: Callable[[], Any]) -> None:
        """Add a member, or say why it is not there: whatever the reason, the rest is of use."""
        try:
            value = make()
        except FileNotFoundError:
            self._bundle.missing[name] = "does not exist"
        except Exception as error:
            told = error.message if isinstance(error, CwError) else f"{type(error).__name__}: {error}"
            self._bundle.missing[name] = self._redactor.text(told)
        else:
            if value is not None:
                self._members[name] = self._redactor.document(value)

    def _logs(self, folder: Path, below: str) -> None:
        """Every file of a folder but the record."""
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.name not in (RECORD, PROGRESS) and (below == "logs" or path.suffix == ".log"):
                    self._add(f"{below}/{path.name}", lambda path=path: self._log(path))  # type: ignore[misc]

    def _log(self, path: Path) -> str:
        return head_and_tail(path, self._log_most)

    def _operation(self) -> Any:
        # One that is no JSON may tell why.
        return self._record or head_and_tail(self._folder / RECORD, self._log_most)

    def _job(self) -> Any:
        return to_json(JobStore(self._settings.state_dir).find(self._record["job"]))

    def _snapshot(self) -> str:
        """Id of the snapshot that the operation made or restored; empty when there is none."""
        return str(self._record.get("result", {}).get("snapshot") or self._record.get("snapshot") or "")

    def _tree(self) -> Any:
        """From the snapshot, else as it is now."""
        if self._snapshot() and self._settings.repository:
            repository = Repository.open(self._settings.repository)
            commit = repository.read_commit(repository.find(self._snapshot()))
            nodes = tree_documents(repository, commit, None)
            return {"of": f"the snapshot {self._snapshot()}", "trees": nodes}
        root = (
            self._record.get("root")
            or JobStore(self._settings.state_dir).running(self._record["job"]).root_pid
        )
        members = trees.find(root).members
        return {"of": "the job as it is now", "processes": [_process(member) for member in members]}

    def _take(self) -> Any:
        """A restore fails or errs by what the take has stored."""
        if self._bundle.kind != "restore":
            return None
        return operation_of_snapshot(self._settings.state_dir, self._snapshot())


def _process(member: trees.Member) -> dict[str, Any]:
    if member.zombie:
        return {"pid": member.ns_pid, "zombie": True}
    stat = procfs.read_stat(member.pid)
    return {**describe.process(member), "parent": stat.ppid, "state": stat.state}


def _variables() -> dict[str, str]:
    """What steers cw-snapshot and criu."""
    prefixes = ("CW_", "CRIU_", "PYTHON", "LD_", "LANG", "LC_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def _doctor() -> Any:
    return {
        "findings": [finding.to_json() for finding in all_checks()],
        "leftovers": [{"what": left.what, "evidence": left.evidence} for left in find_leftovers()],
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


_CONTENTS = {
    "tree.json": "processes, files and sockets of the job, with command lines and environments",
    "job.json": "what cw-snapshot knows of the job",
    RECORD: "the operation: outcome, message, findings, phases and their times",
    PROGRESS: "how far it is, or was when its command died",
    "take-of-the-snapshot.json": "the operation that made the snapshot",
    "settings.json": "settings of cw-snapshot, and the variables that steer it",
    "versions.json": "cw-snapshot, criu, kernel, distribution, Python, glibc",
    "machine.json": "processor, memory, cgroups",
    "doctor.json": "what `cw-snapshot doctor` finds",
    "logs/guard.log": "what the guard did",
}


def readme(bundle: Bundle, record: dict[str, Any], members: dict[str, Any]) -> str:
    """What is inside and what was hidden, for a person who wants to know before sending it."""
    lines = [
        f"Report about {bundle.operation}: {bundle.kind} of job {bundle.job}, {bundle.standing}.",
        f"Begun {record.get('begun', 'unknown')}, ended {record.get('ended', 'not yet')}.",
        "",
        "Inside:",
        *(f"  {name:<28}{_CONTENTS.get(name, 'a log')}" for name in members),
    ]
    if bundle.missing:
        lines += ["", "Not there:", *(f"  {name}: {why}" for name, why in bundle.missing.items())]
    hidden = [f"  {count} x {kind}" for kind, count in sorted(bundle.redacted.items())]
    lines += [
        "",
        f"Hidden as {HIDDEN}:",
        *(hidden or ["  nothing was found that looks secret"]),
        "",
        "Names of files, users and machines, addresses, and whatever does not look secret are NOT hidden.",
        "Look through it before you send it. The job's memory, output and files are not inside.",
    ]
    return "\n".join(lines) + "\n"


def write_report(bundle: Bundle, target: Path, *, force: bool) -> int:
    """Write the bundle for its owner alone; returns its size in bytes.

    :raises ReportExistsError: the file is there, and `force` is not given.
    """
    data = bundle.archive()
    path = target.with_name(f".{target.name}.{os.getpid()}.tmp") if force else target
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ReportExistsError(path=path) from error
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        if force:
            path.replace(target)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return len(data)
