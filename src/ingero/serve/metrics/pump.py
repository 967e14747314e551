"""Queue from the recording threads to the metrics, so that they never wait for readers of metrics."""

from __future__ import annotations

import logging
import queue
import threading
from types import TracebackType

from ingero.diagnose.incidents.incident_changes import Change
from ingero.serve.metrics.facts import SecondFacts
from ingero.serve.metrics.intake import Intake

logger = logging.getLogger(__name__)

_QUEUED = 256  # four minutes; a busy host is read twenty times a second, then 13 s


class Pump:
    """A bounded queue and a thread that empties it into the sums; a context manager. Dropped items are counted."""

    def __init__(self, intake: Intake, held: int = _QUEUED) -> None:
        self._intake = intake
        self._queue: queue.Queue[SecondFacts | Change | None] = queue.Queue(held)
        self._lock = threading.Lock()
        self._dropped = 0  # of these, those that the sums do not know of yet
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="ingero-metrics", daemon=True)

    def second(self, second: SecondFacts) -> None:
        """Queue a recorded second."""
        self._put(second)

    def finding(self, change: Change) -> None:
        """Queue an incident that was opened, updated or closed."""
        self._put(change)

    def _put(self, item: SecondFacts | Change) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._count_dropped()

    def _count_dropped(self) -> None:
        with self._lock:
            self._dropped += 1
            self.dropped += 1

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._take(item)
            except Exception:  # metrics are never worth a recording
                logger.exception("metrics: a second was left out")
                self._count_dropped()

    def _take(self, item: SecondFacts | Change) -> None:
        if isinstance(item, Change):
            self._intake.finding(item)
        else:
            self._intake.second(item)
        with self._lock:
            newly, self._dropped = self._dropped, 0
        if newly:
            self._intake.dropped(newly)

    def __enter__(self) -> Pump:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()
