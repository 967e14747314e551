"""A kept connection to a node: the peer is verified before a byte is sent; clocks are compared on it."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpcore2
import msgspec

from ingero.fleet.clocks import ClockError, Exchange
from ingero.fleet.known_nodes import KnownNodes
from ingero.fleet.node_lists import Node

FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)
"""What a connection raises that does not come about, or breaks."""

TIME_PATH = "/api/v2/time"
_MAX_STAMPS_BYTES = 8 << 10  # headers and all; those of a node have less than 1 KiB
_OTHER_FAMILY_S = 0.25  # until the next address of a name is tried beside the first (RFC 8305)
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_OK = b"HTTP/1.1 200 "
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,4})[ \t]*(?:\r\n|$)", re.IGNORECASE)


class _Stamps(msgspec.Struct, frozen=True):
    received_ns: int
    sent_ns: int


_stamps_of = msgspec.json.Decoder(_Stamps).decode


class Connection:
    """An HTTP/1.1 connection, one request at a time. Made by `open`."""

    def __init__(self, node: Node, stream: _Stream, headers: Mapping[str, str]) -> None:
        """headers: those of every request."""
        self._stream = stream
        self._headers = [
            (name.encode(), value.encode()) for name, value in (("host", node.reached_at), *headers.items())
        ]
        self._origin = httpcore2.Origin(scheme=b"https", host=node.host.encode(), port=node.port)
        self._http = httpcore2.AsyncHTTP11Connection(self._origin, stream)
        lines = [f"GET {TIME_PATH} HTTP/1.1".encode(), *(b"%s: %s" % header for header in self._headers)]
        self._time_question = b"\r\n".join([*lines, b"", b""])

    @classmethod
    async def open(
        cls, node: Node, context: ssl.SSLContext | None, known: KnownNodes | None, headers: Mapping[str, str]
    ) -> Connection:
        """Connect. context: None for plain HTTP. known: the certificates that nodes must show, if pinned.

        Raises:
            KnownNodeError: it shows another certificate than before.
            httpcore2.NetworkError, OSError: there is no connection, or no TLS on it.
        """
        with _failing_as(httpcore2.ConnectError):
            reader, writer = await asyncio.open_connection(
                node.address or node.host, node.port, ssl=context, server_hostname=node.host if context else None,
                happy_eyeballs_delay=_OTHER_FAMILY_S,
            )  # fmt: skip
        stream = _Stream(reader, writer)
        if context is not None and known is not None:
            try:
                known.check(node, stream.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
            except BaseException:
                await stream.aclose()
                raise
        return cls(node, stream, headers)

    async def close(self) -> None:
        """Close it, whatever is still in transit."""
        await self._http.aclose()

    @property
    def is_usable(self) -> bool:
        """Whether it can take a request, as far as is known here."""
        return not self._http.is_closed() and not self._http.has_expired()

    @property
    def certificate_until(self) -> str:
        """End of the validity of the node's certificate, as in the certificate; "" if it was not checked."""
        tls = self._stream.get_extra_info("ssl_object")
        found = tls.getpeercert() if tls is not None else None
        return str((found or {}).get("notAfter", ""))

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> httpcore2.Response:
        """Send a request; its response, which the caller reads and closes.

        Raises:
            httpcore2.NetworkError, httpcore2.ProtocolError: there is none.
        """
        more = {**headers, "content-length": str(len(body))} if body else headers
        request = httpcore2.Request(
            method,
            httpcore2.URL(
                scheme=self._origin.scheme, host=self._origin.host, port=self._origin.port, target=path.encode()
            ),
            headers=[*self._headers, *((name.encode(), value.encode()) for name, value in more.items())],
            content=body or None,
        )
        return await self._http.handle_async_request(request)

    async def exchange(self) -> Exchange:
        """One exchange of clocks: written and read here, so that only network time lies between the stamps.

        After an error the connection is in no state to be used.

        Raises:
            ClockError: what came is no answer to it.
            httpcore2.NetworkError: nothing came.
        """
        asked_ns = time.time_ns()
        await self._stream.write(self._time_question)
        answer = await self._stream.read(_MAX_STAMPS_BYTES)
        answered_ns = time.time_ns()
        while (stamps := _stamps_in(answer)) is None:
            more = await self._stream.read(_MAX_STAMPS_BYTES)
            if not more:
                raise ClockError("the node does not say what its clock shows", hint="ask it again")
            answer += more
        return Exchange(
            asked_ns=asked_ns, received_ns=stamps.received_ns, sent_ns=stamps.sent_ns, answered_ns=answered_ns
        )


class _Stream(httpcore2.AsyncNetworkStream):
    """An asyncio stream for httpcore2: takes half the CPU time of its own stream, which uses anyio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  # httpcore2's; who asks has a limit
        """Data that has arrived, at most so many bytes; b"" at the end."""
        with _failing_as(httpcore2.ReadError):
            return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002  # as above
        """Send all of it."""
        with _failing_as(httpcore2.WriteError):
            self._writer.write(buffer)
            await self._writer.drain()

    async def aclose(self) -> None:
        """Close at once: data still in transit is not needed."""
        self._writer.transport.abort()
        await asyncio.sleep(0)

    def get_extra_info(self, info: str) -> Any:
        """Extra information; `is_readable` of an idle connection means that the peer has closed it."""
        if info == "is_readable":
            return self._reader.at_eof() or self._reader.exception() is not None
        return self._writer.get_extra_info(info)


@contextmanager
def _failing_as(kind: type[httpcore2.NetworkError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # those of TLS are such, too
        raise kind(str(error)) from _of_one_kind(error)


def _of_one_kind(error: OSError) -> OSError:
    """One error for several addresses of a name that failed alike; asyncio concatenates their texts."""
    numbers = set(_ERRNO.findall(str(error)))
    return OSError(int(numbers.pop()), str(error)) if error.errno is None and len(numbers) == 1 else error


def _stamps_in(answer: bytes) -> _Stamps | None:
    """The time stamps in an answer; None: the answer is incomplete.

    Raises:
        ClockError: it is no such answer.
    """
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    is_no_answer = not answer.startswith(_OK[: len(answer)]) or len(answer) > _MAX_STAMPS_BYTES
    if is_no_answer or (end and (length is None or len(body) > int(length[1]))):
        raise ClockError("the node does not say what its clock shows", hint="ask it for /api/v2/time")
    if not end or length is None or len(body) < int(length[1]):
        return None
    try:
        return _stamps_of(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClockError("the node reports an invalid time", hint="ask it for /api/v2/time") from error
