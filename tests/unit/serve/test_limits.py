"""Half-sent requests end, and keep nobody else out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from ingero.serve.http import limits as http_limits
from ingero.serve.http.limits import limits

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"
SHORT_S = 0.5


async def app(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server whose limits are small, so that they are reached."""
    monkeypatch.setattr(http_limits, "REQUEST_S", SHORT_S)
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS_PER_PEER", 8)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_level="critical", lifespan="off", **limits())
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(10)
    return client


def is_answered(client: socket.socket) -> bool:
    """Whether it gets a whole answer to a whole request; head and body may come apart."""
    client.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"ok"):
        part = client.recv(1 << 16)
        if not part:
            return False
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


def ends(client: socket.socket) -> bool:
    """Whether the server closes it, within the client's patience."""
    try:
        return client.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST[:-2], BODY])
def test_a_request_that_stops_halfway_ends(port: int, sent: bytes) -> None:
    with connect(port) as client:
        client.sendall(sent)
        assert ends(client)


def trickle(client: socket.socket) -> None:
    for _ in range(100):
        client.sendall(b"G")
        time.sleep(SHORT_S / 10)


def test_a_request_that_comes_byte_by_byte_ends_all_the_same(port: int) -> None:
    with connect(port) as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle(client)


def test_whole_requests_are_answered_one_after_the_other_on_one_connection(port: int) -> None:
    """Longer than one request may take: each has its own time."""
    with connect(port) as client:
        for _ in range(4):
            assert is_answered(client)
            time.sleep(SHORT_S / 2)


def test_connections_that_ask_nothing_keep_nobody_out(port: int) -> None:
    with ExitStack() as idle:
        silent = [idle.enter_context(connect(port)) for _ in range(40)]
        with connect(port) as client:
            assert is_answered(client)
        assert all(ends(one) for one in silent)


def test_a_server_forgets_who_has_gone(port: int) -> None:
    for _ in range(3 * http_limits.MAX_CONNECTIONS_PER_PEER):
        with connect(port) as client:
            assert is_answered(client)
