"""The live diagnosis of an ongoing recording: the last minute against the best regime since the recording began.

Sync intervals are read once, as digests, and kept: those of the references until better ones come, the rest for a
minute or, during an incident, from shortly before it began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.cases.case_search import CaseSearch
from ingero.diagnose.causes.rule import Rule, all_rules
from ingero.diagnose.diagnosis import diagnose_evidence
from ingero.diagnose.evidence.answer_cache import Answer, AnswerCache
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.interval_cache import IntervalCache
from ingero.diagnose.findings import Diagnosis, Incident
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.incidents.steady_state import LastExplanation
from ingero.diagnose.incidents.tracker import IncidentTracker
from ingero.diagnose.lost_time.best_regime import class_references
from ingero.diagnose.lost_time.ongoing import is_ongoing
from ingero.diagnose.offcpu.path_windows import PathWindows
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.arrays.spans import Spans
from ingero.store.reader import Reader
from ingero.store.records import Process, Thread, Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
_Key: TypeAlias = "tuple[int, int, int, bool]"

LOOK_BACK_NS = 60 * SECOND_NS
LONGEST_NS = 600 * SECOND_NS  # of an ongoing incident that stay in view; its lost time from before is added
_MAX_SYNC_INTERVALS = 50_000  # in view, of a program with thousands a second: a pass reads 30 MB at most
_FORGET_EVERY_NS = 10 * SECOND_NS  # between two removals of old sync intervals
_BEFORE_NS = 5 * SECOND_NS  # kept from before an incident began
# Between two searches for bottlenecks, at first after 1, 2, 4 seconds. They can wait, but at most a minute, while CPU
# time is saved for incidents (docs/adr/0029).
_BOTTLENECKS_EVERY_NS = 10 * SECOND_NS
_MAX_BOTTLENECK_WAIT_NS = LOOK_BACK_NS


class LiveDiagnosis:
    """Diagnoses a recording pass by pass, from one thread. first_number: number of the first incident."""

    def __init__(self, reader: Reader, *, begin_ns: int, first_number: int = 1) -> None:
        self._reader = reader
        self._began_ns = self._until_ns = self._forgot_ns = begin_ns
        self._gpu_streams: dict[_Key, GpuStream] = {}
        # by second: its begin, and the number of sync intervals that ended in it
        self._counts: deque[tuple[int, int]] = deque(maxlen=LONGEST_NS // SECOND_NS)
        self._reads, self._answers = IntervalCache(), AnswerCache()
        self._explained: LastExplanation | None = None
        self._bottlenecks: tuple[Incident, ...] = ()
        self._bottlenecks_ns = 0  # time of the last search for them; 0: they are to be searched again
        self.tracker = IncidentTracker(first_number)
        self.has_onset = False  # a stream starts to lose time, too little yet to be reported, or stands still

    def look(self, *, is_last: bool = False, has_time: bool = True) -> list[Change]:
        """The changes of incidents since the last pass; none where no second has been stored since.

        An unchanged ongoing incident is explained again only now and then, and in the last pass. has_time: whether CPU
        time is left for what can wait.
        """
        until_ns = self._reader.counted_until_ns()
        if until_ns <= self._until_ns:
            return []
        self._read_streams(Window(begin_ns=self._until_ns, end_ns=until_ns))
        self._until_ns = until_ns
        if until_ns - self._forgot_ns >= _FORGET_EVERY_NS:
            self._forgot_ns = until_ns
            self._forget(until_ns)
        changes = self.tracker.update(
            self._diagnosis(until_ns, is_last=is_last, has_time=has_time), until_ns, self._is_ongoing
        )
        self._reads.end_pass()
        self._answers.end_pass()
        return changes

    def _diagnosis(self, until_ns: int, *, is_last: bool, has_time: bool) -> Diagnosis:
        window = Window(begin_ns=self._begin_ns(until_ns), end_ns=until_ns)
        evidence = _LiveEvidence(self._reader, window, list(self._gpu_streams.values()), self._reads, self._answers)
        search = CaseSearch(evidence)
        self.has_onset = search.has_onset()
        incidents = search.incidents()
        known = self._explained
        if incidents:  # whose diagnosis includes the bottlenecks
            self._bottlenecks_ns = 0
            is_due = is_last or not known or known.is_due(until_ns)
            if not is_due and known and self.tracker.is_settled and known.holds(incidents):
                watched = diagnose_evidence(evidence, all_rules(), ())
                if known.covers(watched.incidents):
                    return replace(watched, incidents=known.until(until_ns, incidents, watched.incidents))
            found = diagnose_evidence(evidence, all_rules(), incidents + search.bottlenecks())
            self._explained = LastExplanation(incidents, found.incidents, until_ns)
            return found
        self._explained = None
        found = diagnose_evidence(evidence, all_rules(), ())
        wait_ns = min(_BOTTLENECKS_EVERY_NS, (until_ns - self._began_ns) // 2) if has_time else _MAX_BOTTLENECK_WAIT_NS
        is_due = until_ns - max(self._bottlenecks_ns, self._began_ns) >= wait_ns
        if is_due or self.tracker.has_unreported_urgent_bottleneck:
            self._bottlenecks = diagnose_evidence(evidence, _rules_of_cases(), search.bottlenecks()).incidents
            self._bottlenecks_ns = until_ns
        since_ns = until_ns - self._bottlenecks_ns
        bottlenecks = (_extended(incident, since_ns) for incident in self._bottlenecks)
        return replace(found, incidents=(*found.incidents, *bottlenecks))

    def _is_ongoing(self, incident: Incident, lost_until_ns: int) -> bool:
        """Whether an incident that is no longer seen is still ongoing, and only tracing has changed."""
        worst = next((affected.process for affected in incident.affected), 0)
        gpu_streams = (
            gpu_stream.sync_intervals for gpu_stream in self._gpu_streams.values() if gpu_stream.process == worst
        )
        return any(is_ongoing(sync_intervals, incident, lost_until_ns) for sync_intervals in gpu_streams)

    def _begin_ns(self, until_ns: int) -> int:
        began_ns = self.tracker.earliest_start_ns
        back_ns = until_ns - LOOK_BACK_NS
        if began_ns is not None:
            back_ns = max(min(back_ns, began_ns - _BEFORE_NS), until_ns - LONGEST_NS)
        return max(back_ns, self._dense_since_ns())

    def _dense_since_ns(self) -> int:
        """The time since which the most sync intervals that a pass reads have ended; 0 while there are fewer."""
        ended = since_ns = 0
        for begin_ns, count in reversed(self._counts):
            ended += count
            if ended > _MAX_SYNC_INTERVALS:
                return since_ns or begin_ns
            since_ns = begin_ns
        return 0

    def _read_streams(self, window: Window) -> None:
        """Reads the sync intervals that ended in a window not read before."""
        gpu_streams = [*self._reader.gpu_streams(window), *self._reader.step_gpu_streams(window)]
        ends = np.concatenate(
            [np.zeros(0, np.int64), *(gpu_stream.sync_intervals["sync_end_ns"] for gpu_stream in gpu_streams)]
        )
        seconds, counts = np.unique(ends // SECOND_NS, return_counts=True)
        self._counts.extend(zip((seconds * SECOND_NS).tolist(), counts.tolist(), strict=True))
        for gpu_stream in gpu_streams:
            # the steps of a process are one stream, no matter which stream had most of their launches
            key = (
                (gpu_stream.process, 0, 0, True)
                if gpu_stream.is_steps
                else (gpu_stream.process, gpu_stream.device, gpu_stream.stream, False)
            )
            known = self._gpu_streams.get(key)
            sync_intervals = (
                gpu_stream.sync_intervals
                if known is None
                else np.concatenate([known.sync_intervals, gpu_stream.sync_intervals])
            )
            self._gpu_streams[key] = replace(gpu_stream, sync_intervals=sync_intervals)

    def _forget(self, until_ns: int) -> None:
        """Drops sync intervals that are neither recent nor of a reference, and ended processes without recent ones.

        A process that only paused, or hangs, keeps its reference from before.
        """
        begin_ns = self._begin_ns(until_ns)
        living = {one.process for one in self._reader.processes_since(until_ns)}
        for key, gpu_stream in list(self._gpu_streams.items()):
            sync_intervals = gpu_stream.sync_intervals
            if sync_intervals["sync_end_ns"][0] >= begin_ns:
                continue
            is_over = sync_intervals["sync_end_ns"][-1] < begin_ns and gpu_stream.process not in living
            kept = sync_intervals[:0] if is_over else sync_intervals[_is_kept(sync_intervals, begin_ns)]
            if len(kept):
                self._gpu_streams[key] = replace(gpu_stream, sync_intervals=kept)
            else:
                del self._gpu_streams[key]


@cache
def _rules_of_cases() -> tuple[Rule, ...]:
    return tuple(replace(rule, find_events=None) for rule in all_rules() if rule.explain)


def _extended(incident: Incident, by_ns: int) -> Incident:
    """An incident that was found by_ns ago and has been ongoing since."""
    return replace(incident, end_ns=incident.end_ns + by_ns) if incident.end_ns is not None else incident


def _is_kept(sync_intervals: Array, begin_ns: int) -> Array:
    kept: Array = sync_intervals["sync_end_ns"] >= begin_ns
    for step_type, reference in class_references(sync_intervals).items():
        mine = sync_intervals["step_type"] == step_type
        kept = kept | (
            mine & Spans(reference.windows).hold(sync_intervals["prev_sync_end_ns"], sync_intervals["sync_end_ns"])
        )
    return kept


class _Processes(dict[int, Process]):
    """Processes by number; a process that ended long ago is read on first use, as a rank or an owner of memory."""

    def __init__(self, reader: Reader, known: list[Process]) -> None:
        super().__init__((one.process, one) for one in known)
        self._reader = reader

    def __missing__(self, number: int) -> Process:
        for process in self._reader.processes(only_traced=False):
            if process.process == number:
                self[number] = process
                return process
        raise KeyError(number)


class _LiveEvidence(Evidence):
    """The evidence of a window whose streams have already been read."""

    def __init__(
        self, reader: Reader, window: Window, gpu_streams: list[GpuStream], reads: IntervalCache, answers: AnswerCache
    ) -> None:
        super().__init__(reader, window, is_live=True, reads=reads)
        self._gpu_streams, self._answers = gpu_streams, answers

    def read_gpu_streams(self) -> list[GpuStream]:
        return [gpu_stream for gpu_stream in self._gpu_streams if not gpu_stream.is_steps]

    def read_step_gpu_streams(self) -> list[GpuStream]:
        return [gpu_stream for gpu_stream in self._gpu_streams if gpu_stream.is_steps]

    def cached_path_answer(self, key: Hashable, until_ns: int, ask: Callable[[], Answer]) -> Answer:
        """The answer of `ask`, cached from when the block of off-CPU intervals around it is complete."""
        is_over = PathWindows.complete_at_ns(until_ns) <= self.window.end_ns
        return self._answers.get(key, ask) if is_over else ask()

    @cached_property
    def processes(self) -> dict[int, Process]:
        return _Processes(self.reader, self.read_processes())

    def read_processes(self) -> list[Process]:
        """The processes without those that ended before the window: a server may have started thousands.

        Ended processes with streams, and their workers, are included: they did the work of the references.
        """
        return self.reader.processes_since(
            self.window.begin_ns, also=[gpu_stream.process for gpu_stream in self._gpu_streams]
        )

    def read_threads(self) -> list[Thread]:
        return self.reader.threads(self.processes)
