"""A part of the recording as a file for another host: a consistent copy, bounded in size and time."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ingero.errors import IngeroError
from ingero.serve import boot_clock
from ingero.serve.recording_source import RecordingSource
from ingero.store.merge import extract_part
from ingero.store.merge.part import Part
from ingero.store.records import Window

MEDIA_TYPE = "application/vnd.sqlite3"
MAX_BYTES = 1 << 30  # clients ask for less (fleet/recordings.py)
_MAX_SECONDS = 60.0
_AT_ONCE = 2  # each reads the file and takes a core
_WAIT_S = 20.0  # longest wait for a turn
_PIECE_BYTES = 1 << 18


class BusyError(IngeroError):
    """Other clients are already taking parts of the recording."""


class SlowPartError(IngeroError):
    """A part takes too long to be copied."""


class Parts:
    """Takes parts out of a recording, some at a time."""

    def __init__(self, source: RecordingSource) -> None:
        self._source = source
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    def take(
        self, since: str, begin_ns: int | None, end_ns: int | None, most_bytes: int
    ) -> tuple[int, Iterator[bytes]]:
        """Size and bytes of a file with the last `since`, or with a time range in Unix ns.

        Raises:
            IngeroError: there is no recording, nothing in it then, it is too large, or there is no turn.
        """
        if not self._turns.acquire(timeout=_WAIT_S):
            raise BusyError("it is giving parts of its recording to others", hint="ask again in a minute")
        try:
            file = self._copied(self._window(since, begin_ns, end_ns), most_bytes)
        finally:
            self._turns.release()
        size_bytes = file.seek(0, 2)
        file.seek(0)
        return size_bytes, _pieces(file)

    def _window(self, since: str, begin_ns: int | None, end_ns: int | None) -> Window:
        with self._source.open(since) as (_, window):
            found = window
        return Window(
            begin_ns=found.begin_ns if begin_ns is None else begin_ns,
            end_ns=found.end_ns if end_ns is None else end_ns,
        )

    def _copied(self, window: Window, most_bytes: int) -> BinaryIO:
        until_s = time.monotonic() + _MAX_SECONDS

        def look(_name: str, _share: float) -> None:
            if time.monotonic() > until_s:
                raise SlowPartError(
                    f"copying that part of its recording takes longer than {_MAX_SECONDS:.0f} s",
                    hint="ask for a shorter time",
                )

        with tempfile.TemporaryDirectory(prefix="ingero-part-") as folder:
            copy = Path(folder) / "part.db"
            part, now = Part(window=window, most_bytes=most_bytes), boot_clock.pair(self._source.clock)
            extract_part(self._source.path, copy, part, now=now, progress=look)
            return copy.open("rb")  # it has no name any more, and goes when it is closed


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
