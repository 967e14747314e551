"""Servers that misbehave toward clients, each in one way, until the test ends."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ingero.fleet.node_lists import Node

Handler = Callable[[socket.socket, threading.Event], None]

LINES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
HEADER = (
    b'{"node":{"nodes":["evil"],"machine_id":"","recording":"e"},"columns":["a"],"types":["integer"],"rows":%d,'
    b'"is_truncated":false,"elapsed_ns":1,"notes":[]}\n'
)


def endless_rows(client: socket.socket, is_over: threading.Event) -> None:
    """Ten gigabytes of one row."""
    client.sendall(LINES + HEADER % 1000 + b"[")
    while not is_over.is_set():
        client.sendall(b"1," * (1 << 17))


def endless_small_rows(client: socket.socket, is_over: threading.Event) -> None:
    """More rows than it says."""
    client.sendall(LINES + HEADER % 1000)
    while not is_over.is_set():
        client.sendall(b"[1]\n" * 1000)


def endless_headers(client: socket.socket, is_over: threading.Event) -> None:
    """Headers without end."""
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while not is_over.is_set():
        client.sendall(b"X: " + b"a" * 1000 + b"\r\n")


def drip(client: socket.socket, is_over: threading.Event) -> None:
    """A byte every tenth of a second."""
    client.sendall(LINES)
    for byte in b" " * 1000 + HEADER % 1:
        client.sendall(bytes([byte]))
        if is_over.wait(0.1):
            return


def silence(_: socket.socket, is_over: threading.Event) -> None:
    """Not a word."""
    is_over.wait()


def says(answer: bytes) -> Handler:
    """A handler that sends one answer and closes the connection."""

    def handler(client: socket.socket, _: threading.Event) -> None:
        client.sendall(answer)

    return handler


def http(status: str, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    """The bytes of an HTTP answer."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def read_request(client: socket.socket) -> bytes:
    """A whole one, its body, too: who closes on what it has not read resets the connection. The path it asks for.

    Of what is no HTTP, a handshake of TLS, as much as comes at once; b"" then.
    """
    request = client.recv(1 << 16)
    if not request.startswith((b"GET ", b"POST ")):
        return b""
    while b"\r\n\r\n" not in request:
        if not (piece := client.recv(1 << 16)):
            return b""
        request += piece
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (piece := client.recv(1 << 16)):
        body += piece
    return head.split(b" ", 2)[1]


@contextmanager
def listening(handler: Handler, *, context: ssl.SSLContext | None = None, is_read: bool = True) -> Iterator[Node]:
    """A server on a free port of this machine that does this to everybody. is_read: after it has read a request."""
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(raw: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            client = context.wrap_socket(raw, server_side=True) if context else raw
            with client:
                client.settimeout(5)
                if context is None and is_read:
                    read_request(client)
                handler(client, is_over)
        raw.close()

    def accept() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                thread = threading.Thread(target=serve, args=(server.accept()[0],))
                thread.start()
                threads.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield Node("127.0.0.1", server.getsockname()[1])
        finally:
            is_over.set()
            accepting.join()
            for thread in threads:
                thread.join()
