"""The data that a recording holds for a window, and the data that it lacks: the base of `evidence.Evidence`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from ingero.diagnose.evidence.coverage_gaps import CoverageGaps
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
# The data that is missing of a process with a library without probes, or with an interpreter that cannot be read.
_SEEN_BY = {
    Library.NCCL.value: Source.NCCL.name,
    Library.CUDA.value: SYNC_INTERVALS,
    Library.CUDART.value: OP_STATS,
    PYTHON_LINES: SAMPLES,
}


class Recorded:
    """A window of a recording, with the reasons why data is missing in it."""

    def __init__(self, reader: Reader, window: Window) -> None:
        self.reader = reader
        self.window = window
        self._texts: dict[int, str] = {0: ""}

    @cached_property
    def sessions(self) -> list[Session]:
        """The recording sessions that touch the window."""
        begun = (session for session in self.reader.sessions() if session.started_ns < self.window.end_ns)
        return [one for one in begun if (one.stopped_ns or one.last_seen_ns) >= self.window.begin_ns]

    def counting_since_ns(self, session: int) -> int:
        """The begin of the first counted second of a session; 0 for a session that does not touch the window."""
        started = (known.started_ns for known in self.sessions if known.session == session)
        return next((self.reader.counting_since_ns(at) for at in started), 0)

    @cached_property
    def not_traced(self) -> dict[str, str]:
        """Sources that were not traced, with the reason."""
        found: dict[str, str] = {}
        for session in self.sessions:
            found |= json.loads(session.not_traced)
        if self.reader.missing_end:
            found["end of the recording"] = f"the file lacks {self.reader.missing_end}"
        return found

    def why_unavailable(self, needs: Sequence[str]) -> str:
        """Why a rule with these needs cannot be evaluated; "" if it can."""
        for name in needs:
            if name in self.not_traced:
                return f"{name} not traced: {self.not_traced[name]}"
            if not self.reader.is_recorded(_TABLES.get(name, name)):
                return f"{name.replace('_', ' ')}: not in this recording"
            if name == SAMPLES and self.were_stacks_off:
                return "no samples were taken: stacks were off (--no-stack)"
        return ""

    def unseen(self, needs: Iterable[str]) -> list[str]:
        """Why a part of these needs is missing: files whose calls or lines could not be traced."""
        return [reason for name in needs for reason in self._unseen.get(name, ())]

    @cached_property
    def _unseen(self) -> dict[str, list[str]]:
        sessions = {session.session for session in self.sessions}
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for file in self.reader.unseen_files():
            if file.session in sessions and file.symbol in _SEEN_BY:
                found[_SEEN_BY[file.symbol]][file.reason] = None
        return {name: list(reasons) for name, reasons in found.items()}

    @cached_property
    def were_stacks_off(self) -> bool:
        """Whether any session of the window was recorded with --no-stack."""
        return any(json.loads(session.options).get("stack") is False for session in self.sessions)

    @cached_property
    def gaps(self) -> CoverageGaps:
        """Time ranges in which something was not traced."""
        levels = self.reader.overhead_levels(self.window) if self.reader.is_recorded("raw_overhead_levels") else []
        return CoverageGaps(levels, self.sessions, self.window)

    def text(self, number: int) -> str:
        """The text behind the number in a string column."""
        number = int(number)
        if number not in self._texts:
            self._texts |= {number: ""} | self.reader.texts([number])
        return self._texts[number]
