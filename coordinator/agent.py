"""The agent: one root daemon on a node, which does for the coordinator what concerns that node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from cw_snapshot.coordinator import interfaces
from cw_snapshot.coordinator.epochs import Epochs
from cw_snapshot.coordinator.job_logs import read_log
from cw_snapshot.coordinator.jobs import (
    JobNotFoundError,
    JobState,
    JobStore,
    JobView,
    stop,
    tree_store,
    tree_stores,
)
from cw_snapshot.coordinator.leftovers import recover_dead_operations
from cw_snapshot.coordinator.settings import Settings
from cw_snapshot.coordinator.start import Place, StartRequest, start_tree
from cw_snapshot.coordinator.tls import COORDINATOR, Identity
from cw_snapshot.coordinator.wire import agent_pb2 as wire
from cw_snapshot.coordinator.wire import remote_errors, service
from cw_snapshot.coordinator.wire.frames import Frames
from cw_snapshot.errors import CwError, ExitCode
from cw_snapshot.snapshot import old_addresses, procfs

_THREADS = 32
"""Calls that an agent answers at once; an operation takes one for its whole life."""
_WORKER = ("-I", "-m", "cw_snapshot.coordinator.node_worker")
_STATES = {
    JobState.RUNNING: wire.JobFacts.RUNNING,
    JobState.ENDED: wire.JobFacts.ENDED,
    JobState.LOST: wire.JobFacts.LOST,
}


class NotCoordinatorError(CwError):
    """The certificate of the caller is {name!r}; only {wanted!r} may command agents.

    Fix: use the coordinator's certificate.
    """

    exit_code = ExitCode.NOT_PERMITTED


class PortTakenError(CwError):
    """The agent can't listen on {address}.

    Fix: another agent may run already; `ss -tlnp` tells who listens. Or name another address.
    """

    exit_code = ExitCode.REFUSED


class OldEpochError(CwError):
    """Operation {epoch} on job {job} comes too late: operation {seen} has begun on this node.

    Fix: begin a new operation.
    """

    exit_code = ExitCode.REFUSED


class NewerProtocolError(CwError):
    """The coordinator speaks protocol {wanted}, the agent on {node} (cw-snapshot {version}) only {known}.

    Fix: install the same version of cw-snapshot on all nodes, and start the agents again.
    """

    exit_code = ExitCode.REFUSED


class WorkerDiedError(CwError):
    """The process that did the operation on this node died ({how}); its guard puts the node right.

    Fix: see {log} and the guard.log beside it.
    """

    exit_code = ExitCode.ABORTED


class Agent:
    """Answers the calls of `agent.proto`.

    :param node: its name in the cluster.
    """

    def __init__(self, node: str, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._epochs = Epochs(settings.state_dir / "epochs.json")
        self._operations: Counter[str] = Counter()
        """How many operations on each job are under way."""

    def describe(self, request: wire.DescribeRequest) -> wire.NodeFacts:
        return wire.NodeFacts(
            protocol=service.PROTOCOL,
            version=version("cw-snapshot"),
            node=self._node,
            boot_id=procfs.boot_id(),
            interfaces=[
                wire.Interface(name=name, addresses=addresses)
                for name, addresses in interfaces.addresses().items()
            ],
        )

    def start(self, request: wire.StartRequest) -> wire.JobFacts:
        wanted = StartRequest(
            job=request.job,
            command=list(request.command),
            labels=dict(request.labels),
            nproc_per_node=request.nproc_per_node or None,
            user=request.user or None,
            allow_io_uring=request.allow_io_uring,
            folder=Path(request.folder),
        )
        self.forget_old_addresses()
        place = Place(request.node_rank, request.nnodes, request.incarnation)
        store = self._store(request.node_rank)
        start_tree(store, wanted, request.environment, place)
        return _facts(store.find(request.job))

    def job(self, request: wire.JobQuery) -> wire.JobFacts:
        try:
            return _facts(self._store(request.tree).find(request.job))
        except JobNotFoundError:
            return wire.JobFacts(state=wire.JobFacts.UNKNOWN)

    def log(self, request: wire.LogQuery) -> wire.LogBlock:
        tail = request.tail_lines if request.HasField("tail_lines") else None
        block = read_log(self._store(request.tree), request.job, request.offset, tail)
        return wire.LogBlock(data=block.data, offset=block.offset, ended=block.ended, path=block.path)

    def end(self, request: wire.EndRequest) -> wire.JobFacts:
        grace = timedelta(seconds=request.grace_seconds)
        store = self._store(request.tree)
        found = self.job(wire.JobQuery(job=request.job, tree=request.tree))
        other = request.incarnation and found.incarnation != request.incarnation
        if found.state == wire.JobFacts.UNKNOWN or other:
            return found
        facts = _facts(stop(store, request.job, grace))
        self.forget_old_addresses()
        return facts

    def forget_old_addresses(self) -> None:
        """Delete the tables of restored jobs that have ended here: they lead everybody on this node."""
        for job in old_addresses.jobs_with_tables():
            # A job that is just being restored has a table before it has a record.
            if not self._operations[job] and not any(
                self._runs(store, job) for store in tree_stores(self._settings.state_dir)
            ):
                old_addresses.remove(old_addresses.table_name(job))

    def _runs(self, store: JobStore, job: str) -> bool:
        try:
            return store.find(job).state is JobState.RUNNING
        except CwError:
            return False

    def _store(self, tree: int) -> JobStore:
        return tree_store(self._settings.state_dir, tree)

    def operate(
        self, messages: Iterator[wire.ToNode], context: grpc.ServicerContext
    ) -> Iterator[wire.FromNode]:
        """Hand an operation to a worker of its own, and carry the messages."""
        try:
            _check_caller(context)
            first = next(messages)
            begin = first.begin
            if begin.protocol > service.PROTOCOL:
                raise NewerProtocolError(
                    wanted=begin.protocol,
                    known=service.PROTOCOL,
                    node=self._node,
                    version=version("cw-snapshot"),
                )
            self.forget_old_addresses()
            tree = f"{begin.job}/{begin.tree}"
            if not self._epochs.begin(tree, begin.epoch):
                seen = self._epochs.newest(tree)
                raise OldEpochError(epoch=begin.epoch, job=begin.job, seen=seen)
        except StopIteration:
            return
        except CwError as error:
            _tell(context, error)
            return
        job = first.begin.job
        self._operations[job] += 1
        record = self._settings.state_dir / "operations" / f"{first.begin.operation}.{first.begin.tree}"
        ours, theirs = socket.socketpair()
        frames = Frames(ours)
        with theirs:
            worker = subprocess.Popen(
                [sys.executable, *_WORKER, str(theirs.fileno()), self._node],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "CW_SNAPSHOT_STATE_DIR": str(self._settings.state_dir)},
                stdin=subprocess.DEVNULL,
            )
        frames.send(first)
        threading.Thread(target=_forward, args=(messages, frames), daemon=True).start()
        try:
            while (message := frames.receive(wire.FromNode())) is not None:
                yield message
            frames.end()
            if status := worker.wait():
                raise WorkerDiedError(how=_how(status), log=record)
        except WorkerDiedError as error:
            _tell(context, error)
        finally:
            frames.end()
            worker.wait()
            frames.close()
            self._operations[job] -= 1


def _how(status: int) -> str:
    """Of subprocess."""
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _facts(view: JobView) -> wire.JobFacts:
    return wire.JobFacts(
        state=_STATES[view.state],
        incarnation=view.record.incarnation,
        pid=view.record.init,
        exit_code=view.exit_code or 0,
        signal=view.signal,
        log=view.record.log,
    )


def _forward(messages: Iterator[wire.ToNode], frames: Frames) -> None:
    """From the coordinator to the worker, until either is gone."""
    with suppress(grpc.RpcError, OSError, Exception):
        for message in messages:
            frames.send(message)
    frames.end()


def _check_caller(context: grpc.ServicerContext) -> None:
    names: Iterable[Any] = context.auth_context().get("x509_common_name", [])
    if COORDINATOR.encode() not in names:
        raise NotCoordinatorError(name=b", ".join(names).decode(errors="replace"), wanted=COORDINATOR)


def _tell(context: grpc.ServicerContext, error: BaseException) -> None:
    """End a call with an error of ours; the text is what :mod:`remote_errors` reads."""
    context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
    context.set_details(remote_errors.to_text(error))


def _guarded(method: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            _check_caller(context)
            return method(request)
        except Exception as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, remote_errors.to_text(error))

    return answer


def serve(agent: Agent, address: str, identity: Identity, ready: Callable[[], None]) -> grpc.Server:
    """Begin to serve; what an agent that died has left is repaired first.

    :param address: HOST:PORT.
    :raises PortTakenError: it can't listen there.
    """
    recover_dead_operations()
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, "call"),
        handlers=[service.handler(agent, _guarded)],
        options=[*service.KEEPALIVE, ("grpc.so_reuseport", 0)],
    )
    try:
        server.add_secure_port(address, identity.server())
    except RuntimeError as error:
        raise PortTakenError(address=address) from error
    server.start()
    ready()
    return server
