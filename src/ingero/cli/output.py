"""Standard output of long-running commands, which end cleanly when their reader has gone."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
from collections import deque
from types import TracebackType
from typing import IO, TextIO

import click

from ingero.foreign_text import encodable
from ingero.serve.text.styles import Line, folded, has_color, painted

# The exit code of a program that was ended by a closed pipe, as a shell shows it: 128 + SIGPIPE.
EXIT_CLOSED_PIPE = 141

MAX_WAITING_BYTES = 16 << 20  # of lines that nobody has read yet


def is_colored(stream: IO[str] | None) -> bool:
    """Whether styled lines keep their styles on a stream: by its kind and the environment's color variables."""
    return has_color(os.environ, is_terminal=stream is not None and stream.isatty())


def echo(line: Line, *, err: bool = False) -> None:
    """Prints a line. Control characters in it are shown, not acted on; only marked parts have colors."""
    stream = sys.stderr if err else sys.stdout
    text = _printable(line, stream, is_colored=is_colored(stream))
    click.echo(text, err=err, color=True)  # else click takes out what FORCE_COLOR wants


def echo_folded(line: Line) -> None:
    """Prints a line; on a terminal it is folded between words."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for part in folded(line, width) if width else (line,):
        echo(part)


def echo_json(body: object) -> None:
    """Prints one JSON object over several lines, ASCII only."""
    click.echo(json.dumps(body, indent=2).replace("\x7f", r"\u007f"))


class Output:
    """Writes lines until their reader has gone. A slow reader never blocks the caller.

    A context manager: leaving it waits until all lines have been read, or the reader has gone. dropped: lines without
    room in the queue or on the disk; their number is printed on standard error at the end.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.dropped = 0
        self._is_colored = is_colored(sys.stdout)
        self._why_dropped = "they were not read in time"
        self._lines: deque[str] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_ending = self._is_refused = False
        self._thread = threading.Thread(target=self._run, name="ingero-output", daemon=True)

    def __enter__(self) -> Output:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()
        if self.dropped:
            click.echo(f"{self.dropped} lines were not printed: {self._why_dropped}", err=True)

    def line(self, line: Line) -> None:
        """Queues a line; does nothing after the reader has gone."""
        text = _printable(line, sys.stdout, is_colored=self._is_colored)
        with self._changed:
            if self._is_refused or self._waiting_bytes + len(text) > MAX_WAITING_BYTES:
                self.dropped += 1
            elif not self.is_closed:
                self._lines.append(text)
                self._waiting_bytes += len(text)
                self._changed.notify()

    def _run(self) -> None:
        while (text := self._next()) is not None:
            try:
                _write(f"{text}\n")
            except BrokenPipeError:
                self.is_closed = True
                drop_output()
                return
            except OSError as error:
                self._give_up(error.strerror or str(error))
                return

    def _give_up(self, why: str) -> None:
        """Drops all lines from now on; the recording, which may be on another disk, goes on."""
        drop_output()
        with self._changed:
            self._why_dropped, self._is_refused = why, True
            self.dropped += 1 + len(self._lines)

    def _next(self) -> str | None:
        with self._changed:
            while not self._lines:
                if self._is_ending:
                    return None
                self._changed.wait()
            text = self._lines.popleft()
            self._waiting_bytes -= len(text)
            return text


def _printable(line: Line, stream: TextIO, *, is_colored: bool) -> str:
    return encodable(painted(line, is_colored=is_colored), getattr(stream, "encoding", None) or "utf-8")


def _write(text: str) -> None:
    """Writes all of the text. With unbuffered output, a signal can cut a write that waits for its reader."""
    raw = getattr(sys.stdout, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        click.echo(text, nl=False)
        sys.stdout.flush()
        return
    rest = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while rest:
        rest = rest[raw.write(rest) or 0 :]


def drop_output() -> None:
    """Redirects standard output to /dev/null, so that the interpreter's flush at exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
