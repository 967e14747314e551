"""Buffers the standard output of a statement, so that it ends soon even if its output is read late.

A statement that waits for `less` holds the log of a recording that goes on. So what is not read yet lies in a file
without a name, and the statement goes on.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Protocol

MAX_BYTES = 2 << 30  # unread bytes from which on the statement does wait for the reader
_AT_ONCE = 1 << 18
_BUFFER_BYTES = 1 << 16


class Sink(Protocol):
    """A destination for bytes."""

    def write(self, data: bytes, /) -> object:
        """Write all bytes."""


@contextmanager
def standard_output() -> Iterator[Sink]:
    """Standard output; if it is a pipe or a terminal, writing does not wait for the reader.

    Leaving it waits until all has been read.

    Raises:
        BrokenPipeError: the reader has gone; also when leaving.
    """
    sys.stdout.flush()
    backlog = _backlog()
    if backlog:
        with backlog:
            yield backlog
        return
    direct = getattr(sys.stdout, "buffer", None) or _Text()
    yield direct
    direct.flush()


def _backlog() -> Backlog | None:
    """A backlog; None if the output needs no waiting, or if there is no room for a buffer."""
    try:
        descriptor = sys.stdout.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else Backlog(descriptor)
    except OSError:  # `io.UnsupportedOperation` is one, of a test's or a notebook's
        return None


class Backlog:
    """Writes to a descriptor in a thread of its own, from a file that takes what is not read yet."""

    def __init__(self, descriptor: int, *, most_bytes: int = MAX_BYTES) -> None:
        self._descriptor, self._most_bytes = descriptor, most_bytes
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="ingero-")  # noqa: SIM115  # closed at the end of the thread
        self._buffer = bytearray()
        self._written = self._read = 0
        self._is_over = False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ingero-backlog", daemon=True)

    def write(self, data: bytes, /) -> None:
        """Take all bytes; waits only if the reader is too far behind, or if no room is left to buffer them.

        Raises:
            OSError: the reader has gone, or the descriptor takes nothing.
        """
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        with self._changed:
            self._wait_for_room(len(data))
            try:
                _write_at(self._file.fileno(), data, self._written)
            except OSError:  # no room: what waits must be read first, and then the file is empty
                self._changed.wait_for(lambda: self._error or self._read == self._written)
                self._raise()
                _write_all(self._descriptor, data)
                return
            self._written += len(data)
            self._changed.notify_all()

    def _wait_for_room(self, size: int) -> None:
        self._changed.wait_for(
            lambda: self._error or self._read == self._written or self._written + size <= self._most_bytes
        )
        self._raise()
        if self._read == self._written:
            os.ftruncate(self._file.fileno(), 0)
            self._read = self._written = 0

    def _raise(self) -> None:
        if self._error:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._read < self._written)
                if self._read == self._written:
                    return
                at, size = self._read, min(_AT_ONCE, self._written - self._read)
            try:
                _write_all(self._descriptor, os.pread(self._file.fileno(), size, at))
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._read += size
                self._changed.notify_all()

    def __enter__(self) -> Backlog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return  # Ctrl-C does not wait
        try:  # also what came before an error
            if not self._error:
                self._hand_over()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            self._thread.join()
            self._file.close()
        if kind is None:
            self._raise()


class _Text:
    """An output that takes only text."""

    def write(self, data: bytes, /) -> object:
        return sys.stdout.write(data.decode("utf-8"))

    def flush(self) -> None:
        sys.stdout.flush()


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        size = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[size:], offset + size


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
