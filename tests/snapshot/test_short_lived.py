"""Children of a job come and go: whatever looks at a running process copes with its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cw_snapshot.snapshot import carried_files, describe, job_facts, preflight, procfs, surroundings, vm_flags
from cw_snapshot.snapshot.criu_binary import Criu
from cw_snapshot.snapshot.pagemap import Pagemap
from cw_snapshot.snapshot.tree import Member, Tree


class Child:
    """A process that waits for its end."""

    def __init__(self) -> None:
        self.pid = os.fork()
        if not self.pid:
            signal.pause()
            os._exit(0)

    def become_zombie(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def vanish(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    with suppress(ChildProcessError, ProcessLookupError):
        os.kill(made.pid, signal.SIGKILL)
        os.waitpid(made.pid, 0)


@pytest.mark.parametrize("end", [Child.become_zombie, Child.vanish])
@pytest.mark.parametrize(
    "look",
    [
        Pagemap,
        procfs.vm_flags,
        procfs.mappings,
        procfs.descriptors,
        procfs.thread_states,
        vm_flags.foresee,
        lambda pid: describe.process(Member(pid, pid)),
        lambda pid: carried_files.find(pid, [], []),
    ],
)
def test_what_looks_says_that_it_has_ended(
    child: Child, end: Callable[[Child], None], look: Callable[[int], object]
) -> None:
    end(child)
    # EACCES: its links, once it has given up its descriptors.
    with suppress(procfs.ProcessGoneError, PermissionError):
        look(child.pid)


@pytest.mark.parametrize("end", [Child.become_zombie, Child.vanish])
def test_preflight_and_prediction_leave_it_out(child: Child, end: Callable[[Child], None]) -> None:
    root, member = Member(os.getpid(), os.getpid()), Member(child.pid, child.pid)
    tree = Tree(root, (root, member))
    facts = preflight.gather(tree)
    assert [one.member for one in facts] == [root, member]
    end(child)
    old_criu = Criu(binary=preflight.Path("criu"), version=(4, 1), pycriu=preflight.Path("pycriu"))
    for one in facts:
        list(preflight._about_process(one, old_criu))
    assert list(surroundings.findings(tree)) is not None
    assert [one.member for one in preflight.gather(tree)] in ([root], [root, member])
    assert job_facts.read(tree).processes >= 1
