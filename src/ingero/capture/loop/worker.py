"""A thread for work that takes too long for the loop that drains the rings: jobs in order, then settling."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

logger = logging.getLogger(__name__)

Job = Callable[[], None]

_MAX_WAITING = 4096  # jobs; the largest keeps a copy of a native stack, 20 KB
_SETTLE_S = 0.2
_LAST_S = 10.0  # for what waits at the end: of 4,096 native stacks the last would take 12 s
_STUCK_S = 1.0  # of one job: a stack takes 3 ms; what takes so long waits for what may never answer
_POLL_PERIOD_S = 0.05


class Worker:
    """Runs jobs on its own thread. Use as a context manager: leaving it runs waiting jobs, then settles for good,
    for 10 s at most, and as long as jobs end.

    settle: called there every 0.2 s, however much there is to do, with the time (`time.monotonic`) until which
    everything that was handed in is done; math.inf when nothing will come any more. failed: the loss counter of jobs
    that found no room or raised; such a job costs itself, never the thread.
    """

    def __init__(self, name: str, settle: Callable[[float], None], *, failed: str) -> None:
        self._settle, self._failed = settle, failed
        self._jobs: queue.SimpleQueue[tuple[float, Job] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._drops: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_open = False
        self._busy_since_s: float | None = None

    def __enter__(self) -> Worker:
        self._thread.start()
        self._is_open = True
        return self

    def end(self) -> None:
        """Takes no more jobs; waiting ones still run, then it settles. Does not wait for that."""
        if self._is_open:
            self._is_open = False
            self._jobs.put(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        until_s = time.monotonic() + _LAST_S
        while self._thread.is_alive() and time.monotonic() < until_s and not self._is_stuck():
            self._thread.join(_POLL_PERIOD_S)
        if self._thread.is_alive():  # in what a process or a file does not answer; the recording ends without it
            logger.warning(
                "the thread %s does not end and was left behind, with all that waits for it", self._thread.name
            )

    def _is_stuck(self) -> bool:
        since_s = self._busy_since_s
        return since_s is not None and time.monotonic() - since_s > _STUCK_S

    def beat(self) -> None:
        """Signals progress; to be called now and then by long jobs."""
        self._busy_since_s = time.monotonic()

    def do(self, job: Job, *, is_needed: bool = False) -> None:
        """Queues a job without waiting; ignored before the worker is entered and after it is left.

        is_needed: however many wait. Of a process that comes or goes: what is missed there is missing for as long as it
        lives, or stays for ever.
        """
        if not self._is_open:
            return
        if is_needed or self._jobs.qsize() < _MAX_WAITING:
            self._jobs.put((time.monotonic(), job))
        else:
            self.count(self._failed)

    @property
    def has_jobs(self) -> bool:
        """Whether jobs wait."""
        return not self._jobs.empty()

    def count(self, counter: str) -> None:
        """Counts dropped data, from any thread."""
        with self._lock:
            self._drops[counter] += 1

    def drops(self) -> dict[str, int]:
        """Dropped data since the last call, by counter."""
        with self._lock:
            drops, self._drops = self._drops, Counter()
        return dict(drops)

    def _run(self) -> None:
        due = time.monotonic() + _SETTLE_S
        while True:
            try:
                entry = self._jobs.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                # handed in since then, a job would be there
                handed_in = due
            else:
                if entry is None:
                    break
                handed_in, job = entry
                self._attempt(job)
            if time.monotonic() >= due:
                self._attempt(lambda until=handed_in: self._settle(until))  # type: ignore[misc]
                due = time.monotonic() + _SETTLE_S
        self._attempt(lambda: self._settle(math.inf))

    def _attempt(self, job: Job) -> None:
        self.beat()
        try:
            job()
        except Exception:
            # what a damaged file or a dying process leads to must not end the thread; it is counted and shown
            logger.exception("the thread %s could not do a job", self._thread.name)
            self.count(self._failed)
        finally:
            self._busy_since_s = None
