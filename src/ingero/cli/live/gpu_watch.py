"""Asks NVML once a second in a thread of its own, because a call can take minutes when the driver hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from ingero.cli.live.state import GpuState
from ingero.discover.gpus import Nvml, open_nvml

PERIOD_S = 1.0
DEADLINE_S = 3.0  # three periods: one late answer is no news
_PARTING_S = 0.2  # what the end of a recording waits for an answer that is under way


class GpuWatch:
    """The last answer of NVML, and how long NVML has not answered. Start it once; `stop` does not wait for a hung call.

    opened: opens NVML. clock: seconds, monotonic.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Nvml]] = open_nvml,
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opened, self._period_s, self._clock = opened, period_s, clock
        self._stop = threading.Event()
        self._answer = GpuState(reason="NVML: not asked yet")
        self._answered_s = clock()
        self._has_ended = False
        # a daemon: the interpreter does not wait for a driver that hangs
        self._thread = threading.Thread(target=self._run, name="ingero-nvml", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._answered_s = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; waits for it only briefly."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PARTING_S)

    def latest(self) -> GpuState:
        """The last answer, with the time since it where that is too long."""
        no_answer_s = self._clock() - self._answered_s
        if self._has_ended or no_answer_s < DEADLINE_S:
            return self._answer
        return replace(self._answer, no_answer_s=no_answer_s)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # whatever the binding raises costs the GPU lines only, and is shown there
            self._say(GpuState(reason=f"NVML: {error}"))
        self._has_ended = True

    def _watch(self) -> None:
        with self._opened() as nvml:
            if not nvml.gpus:
                self._say(GpuState(reason=nvml.reason))
                return
            while True:
                self._say(GpuState(gpus=nvml.gpus, samples=nvml.sample()))
                if self._stop.wait(self._period_s):
                    return

    def _say(self, answer: GpuState) -> None:
        self._answer, self._answered_s = answer, self._clock()
