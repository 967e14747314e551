"""Evidence about calls and lines: exact sums, recorded calls, stack samples outside calls, and their stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.evidence.recorded import Recorded
from ingero.diagnose.findings import CodeLine
from ingero.store.arrays import arrays
from ingero.store.arrays.spans import Spans
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import InFlight, OpShare, Window
from ingero.store.waiters import Waiters
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_NO_SAMPLES: Array = np.zeros(0, arrays.SAMPLE_DTYPE)


class CallEvidence(Recorded):
    """The part of `Evidence` about calls, and about what threads did outside calls."""

    def __init__(self, reader: Reader, window: Window) -> None:
        super().__init__(reader, window)
        self._ops: dict[tuple[tuple[Window, ...], int], list[OpShare]] = {}
        self._samples: dict[tuple[tuple[Window, ...], int], Array] = {}
        self._waiters: dict[tuple[int, int, int], Waiters] = {}

    @cached_property
    def _ops_of_window(self) -> dict[int, list[OpShare]]:
        """The calls of every process in the window by one read: one per process would go through all rows each time."""
        return self.reader.op_shares_by_process(self.window)

    def ops(self, windows: Iterable[Window], process: int) -> list[OpShare]:
        """Sums of a process's calls, by operation, in parts of the window."""
        key = (tuple(windows), process)
        if key[0] == (self.window,):
            return self._ops_of_window.get(process, [])
        if key not in self._ops:
            self._ops[key] = self.reader.op_shares(key[0], process=process)
        return self._ops[key]

    def events(self, window: Window, sources: Sequence[int], process: int | None = None) -> Array:
        """Recorded calls or host events of these sources (`store.arrays.CALL_DTYPE`)."""
        return self.reader.call_rows(window, sources=sources, process=process)

    @cached_property
    def longest_in_flight(self) -> dict[int, InFlight]:
        """The call in flight for longest when last seen, by process."""
        if not self.reader.is_recorded("raw_in_flight"):
            return {}
        return {call.process: call for call in reversed(self.reader.in_flight(self.window))}

    def samples(self, windows: Iterable[Window], process: int) -> Array:
        """Stack samples of a process's threads outside traced calls (`store.arrays.SAMPLE_DTYPE`)."""
        key = (tuple(windows), process)
        if key not in self._samples:
            self._samples[key] = self._read_samples(Spans(key[0]), process)
        return self._samples[key]

    def _read_samples(self, spans: Spans, process: int) -> Array:
        if not self.reader.is_recorded("raw_stack_samples"):
            return _NO_SAMPLES
        near = [self.reader.sample_rows(window, process=process) for window in spans.near(SECOND_NS)]
        rows: Array = np.concatenate([_NO_SAMPLES, *near])
        return rows[spans.hold(rows["time_ns"], rows["time_ns"] + 1)]

    @cached_property
    def stacks(self) -> StackBook:
        """The stacks of the recording, by hash."""
        return StackBook(self.reader)

    def call_line(self, window: Window, process: int, source: int, op: int) -> CodeLine | None:
        """The Python line with most of the recorded time in one operation; None where no stack has a line."""
        times = [one for one in self.reader.stack_times(window, process=process, sources=(source,)) if one.op == op]
        key = (window.begin_ns, window.end_ns, process)
        waiters = self._waiters.setdefault(key, Waiters(self.reader, window, process=process))
        placed, _ = waiters.placed(times, self.stacks)
        time_ns: dict[CodeLine, int] = defaultdict(int)
        for call in placed:
            line = self.own_line(call.waiter.stack_hash if call.waiter else call.time.stack_hash)
            if line:
                time_ns[replace(line, waiting_thread=call.waiter.thread) if call.waiter else line] += call.time.sum_ns
        return max(time_ns, key=lambda line: time_ns[line], default=None)

    def sampled_line(self, window: Window, process: int, *, states: Sequence[str] = ()) -> CodeLine | None:
        """The user's line with most sampled time of a process outside GPU calls; in these thread states, or in any."""
        if not self.reader.is_recorded("raw_stack_samples"):
            return None
        time_ns: dict[CodeLine, int] = defaultdict(int)
        for sample in self.reader.samples(window, process=process):
            line = self.own_line(sample.stack_hash) if not states or sample.state in states else None
            if line:
                time_ns[line] += sample.ns
        return max(time_ns, key=lambda line: time_ns[line], default=None)

    def own_line(self, stack_hash: int) -> CodeLine | None:
        """The innermost line of the user's own code in a stack."""
        stack = self.stacks.of(stack_hash)
        place = stack.own if stack else None
        return CodeLine(file=place.file, line=place.line, function=place.function) if place else None
