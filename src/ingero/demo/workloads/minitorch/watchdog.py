"""The thread that watches over collectives: it asks whether their events have passed, and launches nothing."""

import threading
import time
from collections import deque

from ingero.demo.workloads.minitorch import cuda, naming
from ingero.demo.workloads.minitorch.streams import Event

THREAD_NAME = "pt_nccl_watchdg"  # a thread's name has 15 letters
_PAUSE_S = 0.1  # as torch's


class Watchdog:
    """Asks ten times a second which of the collectives are done, the oldest first, up to one that is not."""

    def __init__(self) -> None:
        self._pending: deque[Event] = deque()
        self._spare: deque[Event] = deque()
        threading.Thread(target=self._watch, name=THREAD_NAME, daemon=True).start()

    def add(self) -> None:
        """Watch the collective that the current stream has got last."""
        event = self._spare.popleft() if self._spare else Event()
        event.record()
        self._pending.append(event)

    def _watch(self) -> None:
        naming.name_this_thread(THREAD_NAME)
        cuda.enter()
        while True:
            while self._pending and self._pending[0].query():
                self._spare.append(self._pending.popleft())
            time.sleep(_PAUSE_S)
