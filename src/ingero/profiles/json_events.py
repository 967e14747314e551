"""Splits a streamed JSON trace into its events, so that no file is ever in memory as a whole.

Only brackets and strings are scanned; each event stays bytes for the decoder. The text outside the array of events (the
file's properties) is collected and decoded at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ingero.profiles.model import ProfileError

# From outside a string to the next bracket, past strings; or to the end of the buffer, so that no byte is scanned
# twice. Group 1: the buffer ends inside a string.
_TO_BRACKET = re.compile(rb'[^"{}\[\]]*(?:"[^"\\]*(?:\\.[^"\\]*)*(?:"|(\\?\Z))[^"{}\[\]]*)*([{}\[\]]|\Z)', re.DOTALL)
_TO_QUOTE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*(?:"|(\\?\Z))', re.DOTALL)
_EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*$')
_KEY_BYTES = 100  # the key, and the white space that people and tools put around it
# Of one event, and of all properties: an event of the research has up to 20 kB, the properties up to 300 kB.
MAX_PIECE_BYTES = 16 << 20


class EventSplitter:
    """Takes a file in chunks and returns the bytes of each event; `properties` is the JSON of the rest."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0  # scanned up to here
        self._is_in_string = False  # at _at
        self._behind_bracket = 0  # position after the last bracket
        self._begin = 0  # start of the event, or of the properties that are not kept yet
        self._depth = 0
        self._events_depth = 0  # depth of the array of events; 0 outside of it
        self._outside: list[bytes] = []
        self._outside_bytes = 0
        self._had_events = False
        self.is_complete = False

    @property
    def properties(self) -> bytes:
        """The JSON text outside the array of events, closed where the file is cut."""
        text = b"".join(self._outside)
        return text if self.is_complete else text + b"]" * bool(self._events_depth) + b"}"

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The events that are complete with this chunk.

        Raises:
            ProfileError: one piece is larger than any profiler writes.
        """
        self._buffer = self._buffer[self._begin :] + chunk
        self._at -= self._begin
        self._behind_bracket -= self._begin
        self._begin = 0
        buffer = self._buffer
        while (at := self._next_bracket(buffer)) >= 0:
            yield from self._bracket(buffer, at)
        if self._events_depth == 0 and self._begin < self._behind_bracket:
            self._keep(buffer[self._begin : self._behind_bracket])
            self._begin = self._behind_bracket
        if len(buffer) - self._begin > MAX_PIECE_BYTES:
            raise ProfileError(
                f"the file has a piece of more than {MAX_PIECE_BYTES >> 20} MiB where an event should be",
                hint="import the file as the profiler wrote it",
            )

    def _next_bracket(self, buffer: bytes) -> int:
        """The position of the next bracket; -1: there is none in the buffer."""
        pattern = _TO_QUOTE if self._is_in_string else _TO_BRACKET
        match = pattern.match(buffer, self._at)
        assert match is not None  # each matches at the end at the latest
        if match.start(1) >= 0:
            self._is_in_string, self._at = True, match.start(1)
            return -1
        self._at = match.end()
        if self._is_in_string:
            self._is_in_string = False
            return self._next_bracket(buffer)
        return match.start(2) if match[2] else -1

    def _bracket(self, buffer: bytes, at: int) -> Iterator[bytes]:
        self._behind_bracket = at + 1
        if buffer[at] in b"{[":
            self._open(buffer, at)
            return
        self._depth -= 1
        if self._depth < 0:
            raise ProfileError("the file is not JSON: it closes more brackets than it opens")
        if self._events_depth and self._depth == self._events_depth:
            yield buffer[self._begin : at + 1]
            self._begin = at + 1
        elif self._events_depth and self._depth < self._events_depth:
            self._events_depth = 0
            self._begin = at
        self.is_complete = self._depth == 0

    def _open(self, buffer: bytes, at: int) -> None:
        self._depth += 1
        if self._events_depth:
            if self._depth == self._events_depth + 1:
                self._begin = at
            return
        is_array = buffer[at] in b"["
        if not is_array or self._had_events:
            return
        key = buffer[max(self._begin, at - _KEY_BYTES) : at]  # what is kept ends with a bracket, so the key is not
        if self._depth == 1 or (self._depth == 2 and _EVENTS_BEGIN.search(key)):
            self._keep(buffer[self._begin : at + 1])
            self._had_events = True
            self._events_depth = self._depth
            self._begin = at + 1

    def _keep(self, text: bytes) -> None:
        self._outside_bytes += len(text)
        if self._outside_bytes > MAX_PIECE_BYTES:
            raise ProfileError(
                f"the file has more than {MAX_PIECE_BYTES >> 20} MiB outside its events",
                hint="import the file as the profiler wrote it",
            )
        self._outside.append(text)
