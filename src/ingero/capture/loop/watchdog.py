"""Detects that the recording loop hangs, and logs where: its rings fill meanwhile."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

STANDS_STILL_S = 3.0  # three ticks; what is dropped by then is counted as such
_POLL_PERIOD_S = 1.0
STOOD_STILL = "loop_stood_still_ns"


class Watchdog:
    """Watches the thread that creates it, from the first `beat` on, inside its `with` block."""

    def __init__(self, *, limit_s: float = STANDS_STILL_S, poll_period_s: float = _POLL_PERIOD_S) -> None:
        self._limit_s, self._poll_period_s = limit_s, poll_period_s
        self._watched = threading.get_ident()
        self._beat_s: float | None = None
        self._stood_still_ns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ingero-watchdog", daemon=True)

    def beat(self) -> None:
        """Signals that the loop is running."""
        now, before = time.monotonic(), self._beat_s
        self._beat_s = now
        if before is not None and now - before > self._limit_s:
            self._stood_still_ns += int((now - before) * 1e9)
            logger.warning("the agent's loop continued after %.1f s", now - before)

    def rest(self) -> None:
        """Stops watching until the next beat: the loop is over, and what follows may take long."""
        self._beat_s = None

    def drops(self) -> dict[str, int]:
        """Time of hangs longer than the limit since the last call, by counter."""
        stood, self._stood_still_ns = self._stood_still_ns, 0
        return {STOOD_STILL: stood}

    def _watch(self) -> None:
        last_beat: float | None = None
        while not self._ended.wait(self._poll_period_s):
            beat = self._beat_s
            if beat is None or beat == last_beat or time.monotonic() - beat <= self._limit_s:
                continue
            last_beat = beat
            logger.warning("the agent's loop has been stuck for %.1f s, at %s", time.monotonic() - beat, self._place())

    def _place(self) -> str:
        frame = sys._current_frames().get(self._watched)
        return " < ".join(_places(frame)) or "unknown place"

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()


def _places(frame: FrameType | None, most: int = 6) -> list[str]:
    """The innermost functions of a stack, with their lines."""
    found: list[str] = []
    while frame is not None and len(found) < most:
        found.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return found
