"""Standard output of a command that goes on for long: a reader that has gone ends it in good order."""

from __future__ import annotations

import io
import os
import sys
import threading

import click

# What a shell sees of a program that a closed pipe has ended: 128 + SIGPIPE.
EXIT_CLOSED_PIPE = 141


class Output:
    """Writes lines until nobody reads them any more."""

    def __init__(self) -> None:
        self.is_closed = False
        self._writing = threading.Lock()  # findings come from a thread of their own

    def line(self, text: str) -> None:
        """Writes a line at once; nothing after the reader has gone."""
        if self.is_closed:
            return
        try:
            with self._writing:
                _write(f"{text}\n")
        except BrokenPipeError:
            self.is_closed = True
            drop_output()


def _write(text: str) -> None:
    """All of the text. Where Python was told not to buffer, a signal cuts a write that waits for its reader."""
    raw = getattr(sys.stdout, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        click.echo(text, nl=False)
        sys.stdout.flush()
        return
    rest = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while rest:
        rest = rest[raw.write(rest) or 0 :]


def drop_output() -> None:
    """Sends what is still buffered nowhere, so that the interpreter's own flush at exit finds nobody missing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
