"""A stream to a terminal that may take nothing for a while (Ctrl-S, a slow connection): writing to it never waits."""

from __future__ import annotations

import os
from typing import TextIO


class TerminalOutput:
    """The file that Rich writes to. Bytes that the terminal does not take are kept and sent first the next time.

    It has its own descriptor: that of the stream is shared with the shell and must not become non-blocking.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = (stream.encoding or "utf-8").lower()
        self._left = bytearray()
        try:
            own = f"/proc/self/fd/{stream.fileno()}"
            self._fd = os.open(own, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # a terminal of somebody else, as after su: it is waited for
            self._fd = os.dup(stream.fileno())

    @property
    def is_behind(self) -> bool:
        """Whether bytes are left that the terminal has not taken, after another try."""
        self.flush()
        return bool(self._left)

    def fileno(self) -> int:
        """The descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Always true: Rich asks before it writes escape sequences."""
        return True

    def write(self, text: str) -> int:
        """Keeps the text until `flush`."""
        self._left += text.encode(self.encoding, "replace")
        return len(text)

    def flush(self) -> None:
        """Sends as much as the terminal takes.

        Raises:
            OSError: it has gone.
        """
        try:
            while self._left:
                del self._left[: os.write(self._fd, self._left)]
        except BlockingIOError:
            return

    def settle(self) -> None:
        """Sends the rest, and waits for the terminal.

        Raises:
            OSError: it has gone.
        """
        while self._left:
            del self._left[: os.write(self._stream.fileno(), self._left)]

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)
