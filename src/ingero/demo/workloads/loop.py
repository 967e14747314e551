"""The parts of a loop beside its GPU work: its end, its callbacks, and a log of its steps."""

import itertools
import json
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import TextIO

from ingero.demo.workloads.background import start_bystanders, start_gil_hog, start_lock_hog, start_native_threads
from ingero.demo.workloads.callbacks import Callbacks
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.minitorch import Tensor

DEFAULT_STEPS = 100


class HostSide:
    """The callbacks of a loop, and the threads beside it, as the host knobs of --knob say."""

    def __init__(self, options: Namespace) -> None:
        self._knobs = HostKnobs(options.knob) if options.knob else None
        lock = threading.Lock()
        start_lock_hog(options, lock)
        self._callbacks = Callbacks(options, lock)
        self.state = HostState()

    def before_step(self, step: int) -> None:
        """Read the knobs, then do what comes before the launches of a step."""
        if self._knobs is not None:
            self.state = self._knobs.read()
            self._callbacks.before_step(self.state, step)

    def after_step(self, step: int, result: Tensor) -> None:
        """Do what comes after the launches of a step."""
        self._callbacks.after_step(self.state, step, result)


class Log:
    """The log that steps.py reads: one JSON line per step."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.began_ns = 0

    def begin(self) -> None:
        """A step begins."""
        self.began_ns = time.monotonic_ns()

    def end(self, **details: object) -> None:
        """Write the step that has ended."""
        now_ns = time.monotonic_ns()
        self._out.write(json.dumps({**details, "t_ns": now_ns, "step_ns": now_ns - self.began_ns}) + "\n")


def start_threads(options: Namespace) -> None:
    """Start the threads that run beside the loop without waiting for it."""
    start_gil_hog(options)
    start_bystanders(options.bystanders)
    start_native_threads(options)


def step_numbers(options: Namespace) -> Iterator[int]:
    """Count the steps: up to --steps and until --seconds are over, a hundred where neither is said."""
    end_ns = time.monotonic_ns() + int(options.seconds * 1e9) if options.seconds else None
    last = DEFAULT_STEPS if options.steps is None and end_ns is None else options.steps
    for step in itertools.count() if last is None else range(last):
        if end_ns is not None and time.monotonic_ns() >= end_ns:
            return
        yield step
