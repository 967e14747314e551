"""The bytes between an inference server and its clients: a length, then that many bytes."""

import socket
import struct
from dataclasses import dataclass

_LENGTH = struct.Struct("<I")
_REQUEST = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of `prompt_tokens`, to be continued by `new_tokens`."""

    prompt_tokens: int
    new_tokens: int

    def pack(self) -> bytes:
        """Return the frame of this request."""
        return frame(_REQUEST.pack(self.prompt_tokens, self.new_tokens))

    @classmethod
    def unpack(cls, content: bytes) -> "Request":
        """Read a request from a frame's content.

        Raises:
            ValueError: the content has another size.
        """
        if len(content) != _REQUEST.size:
            raise ValueError(f"a request has {_REQUEST.size} bytes, not {len(content)}")
        return cls(*_REQUEST.unpack(content))


def frame(content: bytes) -> bytes:
    """Put the length before the content."""
    return _LENGTH.pack(len(content)) + content


def take_frame(received: bytearray) -> bytes | None:
    """Remove the first whole frame from the buffer; return its content, None if it is not complete.

    Raises:
        ValueError: the announced length is not one of this protocol.
    """
    if len(received) < _LENGTH.size:
        return None
    length = _LENGTH.unpack_from(received)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    if len(received) < _LENGTH.size + length:
        return None
    content = bytes(received[_LENGTH.size : _LENGTH.size + length])
    del received[: _LENGTH.size + length]
    return content


def receive_frame(connection: socket.socket, received: bytearray) -> bytes:
    """Read from a blocking socket until a frame is complete; return its content.

    Raises:
        ConnectionError: the peer closed the connection.
    """
    while (content := take_frame(received)) is None:
        chunk = connection.recv(64 << 10)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        received += chunk
    return content
