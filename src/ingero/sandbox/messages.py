"""Questions and answers between two processes: a JSON object, bytes, and open files, with limits in size and time."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("<IIB")  # bytes of the JSON, bytes behind it, open files
MAX_FILES = 250  # with one message; the kernel takes 253 (SCM_MAX_FD)
_MAX_TEXT_BYTES, _MAX_DATA_BYTES = 8 << 20, 32 << 20


class ClosedError(Exception):
    """The other side has ended, or sent no valid message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. content: JSON. data: bytes. files: descriptors, to be closed by the receiver."""

    content: dict[str, Any]
    data: bytes = b""
    files: Sequence[int] = ()


def send(connection: socket.socket, message: Message, *, until_s: float | None = None) -> None:
    """Sends a message. until_s: CLOCK_MONOTONIC; None: no limit.

    Raises:
        TimeoutError: the other side does not take it.
        ClosedError: there is no other side.
    """
    text = json.dumps(message.content, separators=(",", ":")).encode()
    raw = memoryview(_HEADER.pack(len(text), len(message.data), len(message.files)) + text + message.data)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", message.files))] if message.files else []
    try:
        _wait(connection, until_s)
        sent = connection.sendmsg([raw], rights)
        while sent < len(raw):
            _wait(connection, until_s)
            sent += connection.send(raw[sent:])
    except TimeoutError:
        raise
    except OSError as error:
        raise ClosedError(str(error)) from None


def receive(connection: socket.socket, *, until_s: float | None = None) -> Message:
    """Receives the next message.

    Raises:
        TimeoutError: it has not come in time.
        ClosedError: the other side has ended, or sends something else.
    """
    files: list[int] = []
    try:
        text_bytes, data_bytes, count = _HEADER.unpack(_begin(connection, files, until_s))
        if text_bytes > _MAX_TEXT_BYTES or data_bytes > _MAX_DATA_BYTES:
            raise ClosedError("a message is too large")
        rest = _take(connection, text_bytes + data_bytes, until_s)
        content = json.loads(rest[:text_bytes])
        if not isinstance(content, dict) or len(files) != count:
            raise ClosedError("not a message")
        return Message(content, bytes(rest[text_bytes:]), files)
    except (ValueError, RecursionError) as error:
        _close(files)
        raise ClosedError(str(error)) from None
    except TimeoutError:
        _close(files)
        raise
    except OSError as error:
        _close(files)
        raise ClosedError(str(error)) from None
    except BaseException:
        _close(files)
        raise


def _begin(connection: socket.socket, files: list[int], until_s: float | None) -> bytes:
    """Sends the header; the open files go with its first byte."""
    _wait(connection, until_s)
    room = socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)
    first, rights, _, _ = connection.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, raw in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(raw[: len(raw) // numbers.itemsize * numbers.itemsize])
            files.extend(numbers)
    if not first:
        raise ClosedError("the other side has ended")
    return first + _take(connection, _HEADER.size - len(first), until_s)


def _take(connection: socket.socket, size: int, until_s: float | None) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        _wait(connection, until_s)
        count = connection.recv_into(view[filled:])
        if not count:
            raise ClosedError("the other side has ended")
        filled += count
    return data


def _wait(connection: socket.socket, until_s: float | None) -> None:
    """Sets the timeout of the next part to the time left."""
    if until_s is None:
        connection.settimeout(None)
        return
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
