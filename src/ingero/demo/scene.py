"""A scripted recording: sync intervals, waits and calls made up by a script and stored by the real writer.

Used by the tests of the rules and, with more tables (whole_scene.py), by the demos on hosts without root. Times are
seconds since the start of the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np

from ingero.demo.scripted_calls import BY_NAME, ScriptedCalls
from ingero.demo.scripted_host import ScriptedHost
from ingero.demo.scripted_memory import ScriptedMemory
from ingero.demo.scripted_recording import AGENT_PID
from ingero.demo.scripted_steps import (
    BEGIN_NS,
    SYNC_INTERVAL_TIMES,
    Actor,
    Array,
    Frames,
    Intervals,
    Phase,
    Step,
    intervals_of,
    ns_of,
)
from ingero.events import SyncIntervalFlag
from ingero.store.writing import tables
from ingero.store.writing.tables import Value
from ingero.units import SECOND_NS

__all__ = ["AGENT_PID", "BEGIN_NS", "Actor", "Array", "Frames", "Intervals", "Phase", "ScriptedRun", "Step"]


class ScriptedRun(ScriptedCalls, ScriptedHost, ScriptedMemory):
    """Writes one recording; a context manager. Methods of this class itself write the loops of GPU processes."""

    def __enter__(self) -> ScriptedRun:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def train(
        self,
        actor: Actor,
        begin_s: float,
        end_s: float,
        step: Step,
        *,
        stream: int = 0,
        sync_op: str = "cudaStreamSynchronize",
        calls: Mapping[str, tuple[float, float]] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> list[tuple[float, float, float]]:
        """Writes steps from begin_s to end_s, one sync each. calls: by name, how many per step and ms per call;
        sizes: bytes per call.

        Returns each step's start, first launch and end in seconds.
        """
        phase = Phase(step=step, sync_op=sync_op, calls=calls, sizes=sizes or {})
        return self.cycle(actor, begin_s, end_s, [phase], stream=stream)

    def cycle(
        self, actor: Actor, begin_s: float, end_s: float, phases: Sequence[Phase], *, stream: int = 0
    ) -> list[tuple[float, float, float]]:
        """Writes steps from begin_s to end_s, each with one sync interval per phase.

        Returns the start, first launch and end of the last interval of each step, in seconds.
        """
        now = self.at(begin_s)
        end_ns = self.at(end_s)
        columns: list[dict[str, list[int]]] = [{name: [] for name in SYNC_INTERVAL_TIMES} for _ in phases]
        while now < end_ns:
            for phase, mine in zip(phases, columns, strict=True):
                now = self._next(phase.step, now, mine)
        for phase, mine in zip(phases, columns, strict=True):
            self._write(actor, phase, intervals_of(phase.step, mine), stream)
        steps = zip(
            columns[-1]["prev_sync_end_ns"], columns[-1]["first_launch_ns"], columns[-1]["sync_end_ns"], strict=True
        )
        return [tuple((ns - BEGIN_NS) / SECOND_NS for ns in step_times) for step_times in steps]  # type: ignore[misc]

    def _next(self, step: Step, now: int, columns: Mapping[str, list[int]]) -> int:
        """Adds the times of one sync interval that starts at `now`; returns its end (ns)."""
        busy = step.busy_ms * (1 + step.noise * float(self._random.standard_normal()))
        first = now + ns_of(step.idle_ms)
        sync = first + ns_of(min(step.launch_ms, busy))
        ready = first + ns_of(busy)
        back = max(ready, sync) + ns_of(step.return_delay_ms)
        for name, value in zip(SYNC_INTERVAL_TIMES, (now, first, sync, ready, back), strict=True):
            columns[name].append(value)
        return back

    def _write(self, actor: Actor, phase: Phase, intervals: Intervals, stream: int) -> None:
        """Writes all rows of the sync intervals of one phase."""
        self._sync_intervals(actor, phase, intervals, stream)
        for second in np.unique(intervals.seconds):
            mine = intervals.seconds == second
            for name in phase.interval_calls:
                self._calls_of(actor, phase, intervals, mine, name)

    def _sync_intervals(self, actor: Actor, phase: Phase, intervals: Intervals, stream: int) -> None:
        step, sync = phase.step, BY_NAME[phase.sync_op]
        host_ready, first, sync_start, done, back = (intervals.times[name] for name in SYNC_INTERVAL_TIMES)
        key = (
            "launches not traced"
            if step.is_untraced
            else f"launches 2^{step.launches.bit_length() - 1} bytes 2^{step.size_bytes.bit_length() - 1}"
        )
        self.append(
            tables.SYNC_INTERVALS,
            intervals.count,
            process=actor.number,
            pid=actor.pid,
            device=0,
            stream=stream,
            flags=step.flags | (int(SyncIntervalFlag.ENQUEUES_UNSEEN) if step.is_untraced else 0),
            prev_sync_end_ns=host_ready,
            first_launch_ns=first,
            sync_start_ns=sync_start,
            gpu_done_ns=done,
            gpu_done_low_ns=done,
            gpu_done_high_ns=done,
            sync_end_ns=back,
            idle_ns=first - host_ready,
            busy_ns=done - first,
            return_delay_ns=back - done,
            launches=0 if step.is_untraced else step.launches,
            bytes=step.size_bytes,
            op_set=self.text("cudaLaunchKernel,cudaMemcpyAsync"),
            step_type=self.text(key),
            source=int(sync.source),
            op=sync.code,
            prev_sync_tid=actor.pid,
            first_launch_tid=actor.pid,
            sync_tid=actor.pid,
            **intervals.states,
        )

    def _calls_of(self, actor: Actor, phase: Phase, intervals: Intervals, mine: Array, name: str) -> None:
        """Writes the exact sums of one operation's calls in the intervals that ended in one second."""
        per_step, ms = phase.interval_calls[name]
        second, count = float(intervals.seconds[mine][0]), round(per_step * int(mine.sum()))
        columns: dict[str, Value] = {"bytes": count * phase.sizes.get(name, 0)}
        columns["recorded"] = self._recorded(phase, mine, name)
        copies_on = phase.step.flags & int(SyncIntervalFlag.BEFORE_COPY)  # the call is longer than the wait in it
        if name != phase.sync_op or per_step != 1 or copies_on:
            self.op(actor, name, second, count, ms, **columns)
            if name in phase.longest:
                self.op(actor, name, second, int(mine.sum()), phase.longest[name])
            return
        lengths = (intervals.times["sync_end_ns"] - intervals.times["sync_start_ns"])[mine]
        states = {f"{state}_ns": int(ns[mine].sum()) for state, ns in intervals.of_part("sync").items()}
        self._sums(actor, BY_NAME[name], second, lengths, states | columns)

    def _recorded(self, _phase: Phase, _mine: Array, _name: str) -> int:
        """How many of an operation's calls in these intervals are stored as rows; none here."""
        return 0
