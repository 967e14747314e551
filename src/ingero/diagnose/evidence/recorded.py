"""What a recording holds for a window, and what it does not: the base of `evidence.Evidence`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from ingero.diagnose.evidence.coverage_gaps import Gaps
from ingero.ops import Library, Source
from ingero.store.reader import Reader
from ingero.store.records import PYTHON_LINES, Session, Window

# What a rule may need, and the table that holds it. A source of events that is not traced has its name in `not_traced`.
SYNC_INTERVALS = "sync_intervals"
STATES = "thread_state_seconds"
OFFCPU = "offcpu"
CULPRITS = "culprits"
OP_STATS = "op_stats"
SAMPLES = "stack_samples"
GPU_ACTIVITIES = "gpu_activities"  # only imported profiles have any
LAUNCHES = "launches"
ENQUEUES = "enqueues"  # all of them: what a sync interval's GPU time is known by
_TABLES = {
    name: f"raw_{name}" for name in (SYNC_INTERVALS, STATES, OFFCPU, CULPRITS, OP_STATS, "wakers", "in_flight", "halts")
}
_TABLES |= {name: f"raw_{name}" for name in (SAMPLES, "gpu_samples", "scheduling", "allocations", "communicators")}
_TABLES |= {"cpu_seconds": "raw_cpu_seconds", GPU_ACTIVITIES: "raw_gpu_activities"}
# Durations of calls, and counts, that tracing may give up for a while beside the rest of a table.
_TABLES |= dict.fromkeys((LAUNCHES, "launch_times", "allocation_times", "copies"), "raw_op_stats")
_TABLES |= {ENQUEUES: "raw_sync_intervals"}
# What is not there of a process one of whose libraries has no probes, or whose interpreter cannot be read.
_SEEN_BY = {
    Library.NCCL.value: Source.NCCL.name,
    Library.CUDA.value: SYNC_INTERVALS,
    Library.CUDART.value: OP_STATS,
    PYTHON_LINES: SAMPLES,
}


class Recorded:
    """A window of a recording."""

    def __init__(self, reader: Reader, window: Window) -> None:
        self.reader = reader
        self.window = window
        self._texts: dict[int, str] = {0: ""}

    @cached_property
    def sessions(self) -> list[Session]:
        """The recordings that touch the window."""
        return [
            one
            for one in self.reader.sessions()
            if one.started_ns < self.window.end_ns and (one.stopped_ns or one.last_seen_ns) >= self.window.begin_ns
        ]

    def counting_since_ns(self, session: int) -> int:
        """Begin of the first second of a recording; 0 where that does not touch the window."""
        started = (one.started_ns for one in self.sessions if one.session == session)
        return next((self.reader.counting_since_ns(at) for at in started), 0)

    @cached_property
    def not_traced(self) -> dict[str, str]:
        """Sources of which nothing can be in the recording, with the reason."""
        found: dict[str, str] = {}
        for session in self.sessions:
            found |= json.loads(session.not_traced)
        if self.reader.missing_end:
            found["end of the recording"] = f"the file lacks {self.reader.missing_end}"
        return found

    def missing(self, needs: Sequence[str]) -> str:
        """Why a rule with these needs cannot be evaluated; "" when it can."""
        for name in needs:
            if name in self.not_traced:
                return f"{name} not traced: {self.not_traced[name]}"
            if not self.reader.is_recorded(_TABLES.get(name, name)):
                return f"{name.replace('_', ' ')}: not in this recording"
            if name == SAMPLES and self.were_stacks_off:
                return "no samples were taken: stacks were off (--no-stack)"
        return ""

    def unseen(self, needs: Iterable[str]) -> list[str]:
        """Why a part of what a rule needs is not there: files whose calls, or lines, could not be seen."""
        return [reason for name in needs for reason in self._unseen.get(name, ())]

    @cached_property
    def _unseen(self) -> dict[str, list[str]]:
        sessions = {one.session for one in self.sessions}
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for one in self.reader.unseen_files():
            if one.session in sessions and one.symbol in _SEEN_BY:
                found[_SEEN_BY[one.symbol]][one.reason] = None
        return {name: list(reasons) for name, reasons in found.items()}

    @cached_property
    def were_stacks_off(self) -> bool:
        """Whether any of it was recorded with --no-stack."""
        return any(json.loads(one.options).get("stack") is False for one in self.sessions)

    @cached_property
    def gaps(self) -> Gaps:
        """What was not traced for a while."""
        steps = self.reader.overhead_levels(self.window) if self.reader.is_recorded("raw_overhead_levels") else []
        return Gaps(steps, self.sessions, self.window)

    def text(self, number: int) -> str:
        """The text behind a number of a column that says "string"."""
        number = int(number)
        if number not in self._texts:
            self._texts |= {number: ""} | self.reader.texts([number])
        return self._texts[number]
