"""The recording behind the tools: opened anew for every call; what is dear is kept until the file changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ingero.errors import IngeroError
from ingero.units import parse_duration_s

if TYPE_CHECKING:
    from ingero.diagnose.model import Diagnosis
    from ingero.store.reader import Reader
    from ingero.store.records import Window

Answer = TypeVar("Answer")

_MAX_KEPT = 8  # answers about different stretches of time; an assistant asks for few


class EmptyRecordingError(IngeroError):
    """The database holds nothing."""


class RecordingSource:
    """One database; threads may share it. clock: unix ns."""

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {}  # each name has one type

    @contextmanager
    def open(self, since: str) -> Iterator[tuple[Reader, Window]]:
        """A reader, and the last `since` ("90s", "5m"; "": all) of the recording.

        Raises:
            IngeroError: there is no recording, or nothing in it, or since is no duration.
        """
        from ingero.store.reader import open_reader  # noqa: PLC0415  # numpy: 80 ms that no handshake waits for

        since_ns = int(parse_duration_s(since) * 1e9) if since else None
        with open_reader(self.path) as reader:
            window = reader.window(since_ns, self._clock())
            if window is None:
                raise EmptyRecordingError(
                    f"{self.path} holds no recording yet", hint="sudo ingero trace --duration 60s"
                )
            yield reader, window

    def diagnosis(self, since: str) -> Diagnosis:
        """What happened in the last `since`."""
        from ingero.diagnose.engine import diagnose  # noqa: PLC0415  # as above

        return self.kept("diagnosis", since, diagnose)

    def kept(self, name: str, since: str, make: Callable[[Reader, Window], Answer]) -> Answer:
        """The answer that `make` gives, by its name; the same object again while the file stays the same."""
        with self._lock:
            stamp = self._stamp()
            known = self._kept.pop((name, since), None)
            if known is None or known[0] != stamp:
                with self.open(since) as (reader, window):
                    known = stamp, make(reader, window)
            self._kept[name, since] = known  # the last to be thrown away
            if len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            answer: Answer = known[1]
            return answer

    def _stamp(self) -> tuple[int, ...]:
        """What changes when somebody writes to the database or to the log beside it."""
        found: list[int] = []
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            try:
                about = path.stat()
            except OSError:
                found.append(0)
            else:
                found += [about.st_ino, about.st_mtime_ns, about.st_size]
        return tuple(found)
