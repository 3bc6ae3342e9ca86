"""A job of two ranks that never stop to talk, and notice each byte that is lost, doubled or a stranger's.

Rank 0 listens, rank 1 dials: over TCP both send numbers as fast as the other takes them, slower than it
could, so that buffers are full; over UDP rank 1 sends numbers and gets them back. For each file FOLDER/dial.N
rank 1 dials once more, at the address that it remembers. Prints a line `RANK CONNECTION RECEIVED` for each
connection five times a second.

    RANK=R MASTER_ADDR=A python traffic.py FOLDER
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

RANK = os.environ.get("RANK", os.environ["NODE_RANK"])
PORT = 9000
BLOCK = 8192
"""Numbers in one piece."""
SLOW = 0.005
received: dict[str, int] = {}


def fail(why: str) -> None:
    print(f"ERROR rank {RANK}: {why}", flush=True)
    os._exit(1)


def guarded(work: Callable[..., None]) -> Callable[..., None]:
    def run(*words: object) -> None:
        try:
            work(*words)
        except BaseException as error:
            fail(f"{work.__name__}{words}: {error!r}")

    return run


@guarded
def send(connection: socket.socket) -> None:
    number = 0
    while True:
        connection.sendall(struct.pack(f">{BLOCK}Q", *range(number, number + BLOCK)))
        number += BLOCK


@guarded
def receive(connection: socket.socket, name: str) -> None:
    number, rest = 0, b""
    while True:
        data = connection.recv(65536)
        if not data:
            fail(f"{name}: the other side closed after {number} numbers")
        data = rest + data
        whole = len(data) // 8
        found = struct.unpack_from(f">{whole}Q", data)
        if found != tuple(range(number, number + whole)):
            fail(f"{name}: number {number} was expected, and came as {found[:3]}")
        number, rest = number + whole, data[whole * 8 :]
        received[name] = number
        time.sleep(SLOW)


def talk(connection: socket.socket, name: str) -> None:
    received[name] = 0
    threading.Thread(target=send, args=(connection,), daemon=True).start()
    threading.Thread(target=receive, args=(connection, name), daemon=True).start()


@guarded
def echo(udp: socket.socket) -> None:
    while True:
        data, sender = udp.recvfrom(2048)
        received["udp"] = received.get("udp", 0) + 1
        udp.sendto(data, sender)


@guarded
def ask(udp: socket.socket) -> None:
    number = 0
    while True:
        number += 1
        udp.send(struct.pack(">Q", number))
        try:
            (found,) = struct.unpack(">Q", udp.recv(2048))
        except TimeoutError:
            continue  # datagrams may be lost
        if found > number:
            fail(f"udp: {found} came back before it was sent")
        received["udp"] = number
        time.sleep(0.01)


@guarded
def listen() -> None:
    server = socket.create_server(("", PORT))
    while True:
        connection, _ = server.accept()
        name = connection.recv(1, socket.MSG_WAITALL).decode()
        talk(connection, name)


def dial(name: str) -> None:
    connection = socket.create_connection((os.environ["MASTER_ADDR"], PORT), timeout=20)
    connection.settimeout(None)
    connection.sendall(name.encode())
    talk(connection, name)


def main() -> None:
    rank, folder = RANK, Path(sys.argv[1])
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if rank == "0":
        threading.Thread(target=listen, daemon=True).start()
        udp.bind(("", PORT))
        threading.Thread(target=echo, args=(udp,), daemon=True).start()
    else:
        time.sleep(1)  # until it listens
        udp.connect((os.environ["MASTER_ADDR"], PORT))
        udp.settimeout(0.5)
        threading.Thread(target=ask, args=(udp,), daemon=True).start()
        dial("0")
    dialled = {"0"}
    while True:
        time.sleep(0.2)
        for name, count in list(received.items()):
            print(rank, name, count, flush=True)
        wanted = {path.name.partition(".")[2] for path in folder.glob("dial.*")}
        for name in sorted(wanted - dialled) if rank == "1" else []:
            guarded(dial)(name)
            dialled.add(name)


main()
