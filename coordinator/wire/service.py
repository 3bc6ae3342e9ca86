"""The gRPC service of `agent.proto`: method names and message types, for both sides.

Written by hand: code that grpcio's generator makes is bound to one version of grpcio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from cw_snapshot.coordinator.wire import agent_pb2 as wire

SERVICE = "cw_snapshot.v1.Agent"
PROTOCOL = 1
"""Of `agent.proto`; its head says when it grows."""
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Else 60 s where the peer's kernel still acknowledges, but the peer hangs: what counts for the answer to
    # a ping is the longer of the two (grpc 1.85, measured).
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
"""A peer that vanished without a word is noticed within 15 s while nothing is sent; phases have their
own, shorter deadlines."""

_UNARY: dict[str, tuple[Any, Any]] = {
    "Describe": (wire.DescribeRequest, wire.NodeFacts),
    "Start": (wire.StartRequest, wire.JobFacts),
    "Job": (wire.JobQuery, wire.JobFacts),
    "Log": (wire.LogQuery, wire.LogBlock),
    "End": (wire.EndRequest, wire.JobFacts),
}


class Servicer(Protocol):
    """What an agent does."""

    def describe(self, request: wire.DescribeRequest) -> wire.NodeFacts: ...
    def start(self, request: wire.StartRequest) -> wire.JobFacts: ...
    def job(self, request: wire.JobQuery) -> wire.JobFacts: ...
    def log(self, request: wire.LogQuery) -> wire.LogBlock: ...
    def end(self, request: wire.EndRequest) -> wire.JobFacts: ...
    def operate(
        self, messages: Iterator[wire.ToNode], context: grpc.ServicerContext
    ) -> Iterator[wire.FromNode]: ...


Guarded = Callable[[Callable[[Any], Any]], Callable[[Any, grpc.ServicerContext], Any]]


def handler(servicer: Servicer, guarded: Guarded) -> grpc.GenericRpcHandler:
    """The handler of a server.

    :param guarded: wraps each unary method: who may call it, and how its errors are told.
    """
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            guarded(getattr(servicer, name.lower())),
            request_deserializer=request.FromString,
            response_serializer=reply.SerializeToString,
        )
        for name, (request, reply) in _UNARY.items()
    }
    methods["Operate"] = grpc.stream_stream_rpc_method_handler(
        servicer.operate,
        request_deserializer=wire.ToNode.FromString,
        response_serializer=wire.FromNode.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def call(channel: grpc.Channel, name: str) -> Any:
    """A method of the service on a channel."""
    request, reply = _UNARY[name]
    return channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=reply.FromString,
    )


def operate(channel: grpc.Channel) -> Any:
    """The streaming method of the service on a channel."""
    return channel.stream_stream(
        f"/{SERVICE}/Operate",
        request_serializer=wire.ToNode.SerializeToString,
        response_deserializer=wire.FromNode.FromString,
    )
