"""Runs `ingero`, and writes into a file when each phase of its start has ended: `start_up` runs it and reads the file.

The functions that end a phase are wrapped from outside, so that the product holds nothing of this. Imports of its own
are few: they would count as the agent's.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

# Function -> the phase that ends with its return.
_PHASES = {
    "ingero.cli.trace.plan:refuse_if_blocked": "imports",
    "ingero.attach.kernel_side:KernelSide.__init__": "objects loaded",
    "ingero.capture.loop.recorder:Recorder.__init__": "recorder made",
    "ingero.attach.kernel_side:KernelSide.start": "clocks attached",
    "ingero.capture.budget.overhead_limiter:OverheadLimiter.start": "calibrated",
    "ingero.capture.loop.recorder:Recorder.start": "probes attached, threads enrolled",
}


class Marks:
    """Writes `{"phase": ..., "wall_ms": ..., "cpu_ms": ...}` lines: time since `since_ns`, the process's CPU time."""

    def __init__(self, path: str, since_ns: int) -> None:
        self._path, self._since_ns = path, since_ns
        self._seen: set[str] = set()

    def ended(self, phase: str) -> None:
        """Only the first end counts."""
        if phase in self._seen:
            return
        self._seen.add(phase)
        wall_ms, cpu_ms = (time.monotonic_ns() - self._since_ns) / 1e6, time.process_time_ns() / 1e6
        with open(self._path, "a") as file:  # noqa: PTH123  # pathlib would be imported for it
            file.write(f'{{"phase": "{phase}", "wall_ms": {wall_ms:.3f}, "cpu_ms": {cpu_ms:.3f}}}\n')

    def wrap(self, where: str, phase: str) -> None:
        """Marks the first return of the function `module:name`."""
        module, _, name = where.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, last, self._wrapped(getattr(owner, last), phase))

    def _wrapped(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            answer = function(*arguments, **options)
            self.ended(phase)
            return answer

        return run


def main() -> None:
    """Arguments: the file, the time of `exec` (CLOCK_MONOTONIC in ns), then those of ingero."""
    path, since_ns, *arguments = sys.argv[1:]
    marks = Marks(path, int(since_ns))
    marks.ended("interpreter")
    agent = importlib.import_module("ingero.cli.main")
    for where, phase in _PHASES.items():
        marks.wrap(where, phase)
    sys.argv = ["ingero", *arguments]
    agent.main()


if __name__ == "__main__":
    main()
