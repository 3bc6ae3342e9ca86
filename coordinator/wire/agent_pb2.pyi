from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ("protocol", "version", "node", "boot_id", "interfaces")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    node: str
    boot_id: str
    interfaces: _containers.RepeatedCompositeFieldContainer[Interface]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., interfaces: _Optional[_Iterable[_Union[Interface, _Mapping]]] = ...) -> None: ...

class Interface(_message.Message):
    __slots__ = ("name", "addresses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("job", "command", "environment", "folder", "user", "labels", "allow_io_uring", "incarnation", "nproc_per_node", "node_rank", "nnodes")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_IO_URING_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NPROC_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NNODES_FIELD_NUMBER: _ClassVar[int]
    job: str
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    folder: str
    user: str
    labels: _containers.ScalarMap[str, str]
    allow_io_uring: bool
    incarnation: int
    nproc_per_node: int
    node_rank: int
    nnodes: int
    def __init__(self, job: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., folder: _Optional[str] = ..., user: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., allow_io_uring: bool = ..., incarnation: _Optional[int] = ..., nproc_per_node: _Optional[int] = ..., node_rank: _Optional[int] = ..., nnodes: _Optional[int] = ...) -> None: ...

class JobQuery(_message.Message):
    __slots__ = ("job", "tree")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    job: str
    tree: int
    def __init__(self, job: _Optional[str] = ..., tree: _Optional[int] = ...) -> None: ...

class JobFacts(_message.Message):
    __slots__ = ("state", "incarnation", "pid", "exit_code", "signal", "log")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[JobFacts.State]
        RUNNING: _ClassVar[JobFacts.State]
        ENDED: _ClassVar[JobFacts.State]
        LOST: _ClassVar[JobFacts.State]
    UNKNOWN: JobFacts.State
    RUNNING: JobFacts.State
    ENDED: JobFacts.State
    LOST: JobFacts.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    state: JobFacts.State
    incarnation: int
    pid: int
    exit_code: int
    signal: int
    log: str
    def __init__(self, state: _Optional[_Union[JobFacts.State, str]] = ..., incarnation: _Optional[int] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., log: _Optional[str] = ...) -> None: ...

class LogQuery(_message.Message):
    __slots__ = ("job", "tree", "offset", "tail_lines")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    job: str
    tree: int
    offset: int
    tail_lines: int
    def __init__(self, job: _Optional[str] = ..., tree: _Optional[int] = ..., offset: _Optional[int] = ..., tail_lines: _Optional[int] = ...) -> None: ...

class LogBlock(_message.Message):
    __slots__ = ("data", "offset", "ended", "path")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset: int
    ended: bool
    path: str
    def __init__(self, data: _Optional[bytes] = ..., offset: _Optional[int] = ..., ended: bool = ..., path: _Optional[str] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("job", "grace_seconds", "tree", "incarnation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    grace_seconds: float
    tree: int
    incarnation: int
    def __init__(self, job: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., tree: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ToNode(_message.Message):
    __slots__ = ("begin", "command", "claims", "finish")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    command: Command
    claims: Claims
    finish: Finish
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., claims: _Optional[_Union[Claims, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class FromNode(_message.Message):
    __slots__ = ("vote", "claim", "progress")
    VOTE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    vote: Vote
    claim: Claim
    progress: Progress
    def __init__(self, vote: _Optional[_Union[Vote, _Mapping]] = ..., claim: _Optional[_Union[Claim, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("epoch", "operation", "job", "repository", "pause_limit_seconds", "take", "restore", "tree", "protocol")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    PAUSE_LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    operation: str
    job: str
    repository: str
    pause_limit_seconds: float
    take: BeginTake
    restore: BeginRestore
    tree: int
    protocol: int
    def __init__(self, epoch: _Optional[int] = ..., operation: _Optional[str] = ..., job: _Optional[str] = ..., repository: _Optional[str] = ..., pause_limit_seconds: _Optional[float] = ..., take: _Optional[_Union[BeginTake, _Mapping]] = ..., restore: _Optional[_Union[BeginRestore, _Mapping]] = ..., tree: _Optional[int] = ..., protocol: _Optional[int] = ...) -> None: ...

class BeginTake(_message.Message):
    __slots__ = ("root", "stop", "force")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    root: int
    stop: bool
    force: bool
    def __init__(self, root: _Optional[int] = ..., stop: bool = ..., force: bool = ...) -> None: ...

class BeginRestore(_message.Message):
    __slots__ = ("manifest", "manifest_size", "snapshot", "incarnation", "record", "own_addresses", "peer_addresses", "endpoints", "files", "redirect_to", "plan_only", "former_addresses")
    class OwnAddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PeerAddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EndpointsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FormerAddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SIZE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    OWN_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_TO_FIELD_NUMBER: _ClassVar[int]
    PLAN_ONLY_FIELD_NUMBER: _ClassVar[int]
    FORMER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    manifest_size: int
    snapshot: str
    incarnation: int
    record: str
    own_addresses: _containers.ScalarMap[str, str]
    peer_addresses: _containers.ScalarMap[str, str]
    endpoints: _containers.ScalarMap[str, str]
    files: str
    redirect_to: str
    plan_only: bool
    former_addresses: _containers.ScalarMap[str, str]
    def __init__(self, manifest: _Optional[str] = ..., manifest_size: _Optional[int] = ..., snapshot: _Optional[str] = ..., incarnation: _Optional[int] = ..., record: _Optional[str] = ..., own_addresses: _Optional[_Mapping[str, str]] = ..., peer_addresses: _Optional[_Mapping[str, str]] = ..., endpoints: _Optional[_Mapping[str, str]] = ..., files: _Optional[str] = ..., redirect_to: _Optional[str] = ..., plan_only: bool = ..., former_addresses: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("epoch", "phase")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    phase: str
    def __init__(self, epoch: _Optional[int] = ..., phase: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("durable",)
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    durable: bool
    def __init__(self, durable: bool = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("epoch", "phase", "yes", "json")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    phase: str
    yes: bool
    json: str
    def __init__(self, epoch: _Optional[int] = ..., phase: _Optional[str] = ..., yes: bool = ..., json: _Optional[str] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("request", "chunks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    request: int
    chunks: bytes
    def __init__(self, request: _Optional[int] = ..., chunks: _Optional[bytes] = ...) -> None: ...

class Claims(_message.Message):
    __slots__ = ("request", "answers")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    request: int
    answers: bytes
    def __init__(self, request: _Optional[int] = ..., answers: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done_bytes: int
    total_bytes: int
    def __init__(self, phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...
