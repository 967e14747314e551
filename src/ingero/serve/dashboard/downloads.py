"""Downloads of the recording, made on request: a trace for Perfetto, a report."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ingero.errors import IngeroError
from ingero.program import command
from ingero.serve.dashboard.selection import TimeRange
from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import Format, export
from ingero.serve.recording_part import BusyError
from ingero.serve.recording_source import RecordingSource
from ingero.store.errors import EmptyPartError
from ingero.store.streaming.streams import Streams

TRACE_TYPE = "application/octet-stream"
_MAX_SECONDS = 60.0
_WAIT_S = 20.0  # longest wait for a turn
_PIECE_BYTES = 1 << 18


class SlowTraceError(IngeroError):
    """The file takes too long to be made."""


class Downloads:
    """Makes one file at a time: each reads every recorded call, and takes a core."""

    def __init__(self, source: RecordingSource) -> None:
        self._source = source
        self._turn = threading.Lock()

    def perfetto(self, asked: TimeRange) -> tuple[int, Iterator[bytes]]:
        """Size and bytes of the trace file.

        Raises:
            IngeroError: nothing was recorded then, it becomes too large or takes too long, or there is no turn.
        """
        with self._its_turn():
            file = self._written(asked)
        size_bytes = file.seek(0, 2)
        file.seek(0)
        return size_bytes, _pieces(file)

    def report(self, asked: TimeRange) -> bytes:
        """The report of a time as one HTML file, as `ingero explain --html` writes it.

        Raises:
            IngeroError: nothing was recorded then, it becomes too large, or there is no turn.
        """
        from ingero.serve.html_report.report import report  # noqa: PLC0415  # what few ask for

        diagnosis = asked.of(self._source.diagnosis(asked.since))
        with self._its_turn(), self._source.open(asked.since) as (reader, whole):
            part = asked.within(whole)
            if not part.duration_ns:
                raise EmptyPartError(reader.path, part)
            return report(reader, part, diagnosis)

    @contextmanager
    def _its_turn(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=_WAIT_S):
            raise BusyError("another file is being made", hint="ask again in a minute")
        try:
            yield
        finally:
            self._turn.release()

    def _written(self, asked: TimeRange) -> IO[bytes]:
        until_s = time.monotonic() + _MAX_SECONDS

        def look(_title: str, _share: float) -> None:
            if time.monotonic() > until_s:
                raise SlowTraceError(
                    f"making the file takes longer than {_MAX_SECONDS:.0f} s",
                    hint=f"select a shorter time, or use `{command('export', '--format', 'perfetto')}`",
                )

        file = tempfile.TemporaryFile(prefix="ingero-trace-")  # noqa: SIM115  # whoever sends it closes it
        try:
            with self._source.open(asked.since) as (reader, whole):
                streams = Streams(reader, asked.within(whole))
                export(streams, whole, Format.PERFETTO, file, weight=Weight.TIME, progress=look)
        except BaseException:
            file.close()
            raise
        return file


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
