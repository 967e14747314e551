"""The diagnosis of a recording that goes on: the last minute against the best regime since it began.

Sync intervals are read once, as digests, and kept: those of the references for as long as nothing better comes, the
rest for a minute or, while an incident is open, since shortly before it began.
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
from ingero.diagnose.evidence.answer_cache import Answer, KeptAnswers
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.interval_cache import KeptReads
from ingero.diagnose.findings import Diagnosis, Incident
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.incidents.steady_state import Explained
from ingero.diagnose.incidents.tracker import IncidentTracker
from ingero.diagnose.lost_time.best_regime import usual_sync_intervals
from ingero.diagnose.lost_time.ongoing import goes_on
from ingero.diagnose.offcpu.path_windows import WaitWindows
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.arrays.spans import Spans
from ingero.store.reader import Reader
from ingero.store.records import Process, Thread, Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
_Key: TypeAlias = "tuple[int, int, int, bool]"

LOOK_BACK_NS = 60 * SECOND_NS
LONGEST_NS = 600 * SECOND_NS  # of an open incident that is looked at whole; before, its lost time is carried on
_MOST_SYNC_INTERVALS = (
    50_000  # the same for a program with thousands of sync intervals a second: a look reads 30 MB at most
)
_FORGET_NS = 10 * SECOND_NS  # between two times of letting old sync intervals go
_BEFORE_NS = 5 * SECOND_NS  # kept from before an incident began
# So often what is slow at best is looked at, a share of a minute; at first after 1, 2, 4 seconds. It can wait, but no
# longer than that minute, where the time is better kept for what begins.
_AT_BEST_NS = 10 * SECOND_NS
_AT_BEST_AT_LAST_NS = LOOK_BACK_NS


class LiveDiagnosis:
    """Asked again and again; one thread. first_number: of the first incident."""

    def __init__(self, reader: Reader, *, begin_ns: int, first_number: int = 1) -> None:
        self._reader = reader
        self._began_ns = self._until_ns = self._forgot_ns = begin_ns
        self._gpu_streams: dict[_Key, GpuStream] = {}
        # by second: its begin, sync intervals that ended in it
        self._taken: deque[tuple[int, int]] = deque(maxlen=LONGEST_NS // SECOND_NS)
        self._reads, self._answers = KeptReads(), KeptAnswers()
        self._explained: Explained | None = None
        self._at_best: tuple[Incident, ...] = ()
        self._at_best_ns = 0  # when that was looked at; 0: it is to be looked at anew
        self.tracker = IncidentTracker(first_number)
        self.sees_a_beginning = False  # something began to lose time, too little yet to be told, or stands still

    def look(self, *, is_last: bool = False, has_time: bool = True) -> list[Change]:
        """What has changed since the last look; nothing where no second has been stored since.

        What goes on as it was told is explained anew only now and then; by the last look it is.
        has_time: for what can wait.
        """
        until_ns = self._reader.counted_until_ns()
        if until_ns <= self._until_ns:
            return []
        self._take(Window(begin_ns=self._until_ns, end_ns=until_ns))
        self._until_ns = until_ns
        if until_ns - self._forgot_ns >= _FORGET_NS:
            self._forgot_ns = until_ns
            self._forget(until_ns)
        changes = self.tracker.update(
            self._diagnosis(until_ns, is_last=is_last, has_time=has_time), until_ns, self._goes_on
        )
        self._reads.end_look()
        self._answers.end_look()
        return changes

    def _diagnosis(self, until_ns: int, *, is_last: bool, has_time: bool) -> Diagnosis:
        window = Window(begin_ns=self._begin_ns(until_ns), end_ns=until_ns)
        evidence = _LiveEvidence(self._reader, window, list(self._gpu_streams.values()), self._reads, self._answers)
        search = CaseSearch(evidence)
        self.sees_a_beginning = search.sees_a_beginning()
        incidents = search.incidents()
        known = self._explained
        if incidents:  # which say what was slow before, too
            self._at_best_ns = 0
            is_due = is_last or not known or known.is_due(until_ns)
            if not is_due and known and self.tracker.is_settled and known.holds(incidents):
                watched = diagnose_evidence(evidence, all_rules(), ())
                if known.covers(watched.incidents):
                    return replace(watched, incidents=known.until(until_ns, incidents, watched.incidents))
            found = diagnose_evidence(evidence, all_rules(), incidents + search.bottlenecks())
            self._explained = Explained(incidents, found.incidents, until_ns)
            return found
        self._explained = None
        found = diagnose_evidence(evidence, all_rules(), ())
        often_ns = min(_AT_BEST_NS, (until_ns - self._began_ns) // 2)
        is_due = until_ns - max(self._at_best_ns, self._began_ns) >= (often_ns if has_time else _AT_BEST_AT_LAST_NS)
        if is_due or self.tracker.awaits_what_others_take:
            self._at_best = diagnose_evidence(evidence, _rules_of_cases(), search.bottlenecks()).incidents
            self._at_best_ns = until_ns
        since_ns = until_ns - self._at_best_ns
        return replace(found, incidents=(*found.incidents, *(_gone_on(one, since_ns) for one in self._at_best)))

    def _goes_on(self, incident: Incident, lost_until_ns: int) -> bool:
        """Whether an open incident that is not seen any more only is not seen, because tracing has changed."""
        worst = next((affected.process for affected in incident.affected), 0)
        gpu_streams = (
            gpu_stream.sync_intervals for gpu_stream in self._gpu_streams.values() if gpu_stream.process == worst
        )
        return any(goes_on(sync_intervals, incident, lost_until_ns) for sync_intervals in gpu_streams)

    def _begin_ns(self, until_ns: int) -> int:
        began_ns = self.tracker.earliest_start_ns
        back_ns = until_ns - LOOK_BACK_NS
        if began_ns is not None:
            back_ns = max(min(back_ns, began_ns - _BEFORE_NS), until_ns - LONGEST_NS)
        return max(back_ns, self._dense_since_ns())

    def _dense_since_ns(self) -> int:
        """Since when as many sync intervals have ended as are looked at; 0 while there are fewer."""
        ended = since_ns = 0
        for begin_ns, count in reversed(self._taken):
            ended += count
            if ended > _MOST_SYNC_INTERVALS:
                return since_ns or begin_ns
            since_ns = begin_ns
        return 0

    def _take(self, window: Window) -> None:
        """The sync intervals that ended in a window that has not been read yet."""
        gpu_streams = [*self._reader.gpu_streams(window), *self._reader.step_gpu_streams(window)]
        ends = np.concatenate(
            [np.zeros(0, np.int64), *(gpu_stream.sync_intervals["sync_end_ns"] for gpu_stream in gpu_streams)]
        )
        seconds, counts = np.unique(ends // SECOND_NS, return_counts=True)
        self._taken.extend(zip((seconds * SECOND_NS).tolist(), counts.tolist(), strict=True))
        for gpu_stream in gpu_streams:
            # a process's steps are one stream, whichever stream had most of their launches
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
        """What is neither recent nor the best seen of its class; ended processes with nothing recent.

        One that only paused, or hangs, goes on against the reference from before.
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
    return tuple(replace(rule, watch=None) for rule in all_rules() if rule.find)


def _gone_on(one: Incident, since_ns: int) -> Incident:
    """What was seen that long ago, and goes on."""
    return replace(one, end_ns=one.end_ns + since_ns) if one.end_ns is not None else one


def _is_kept(sync_intervals: Array, begin_ns: int) -> Array:
    kept: Array = sync_intervals["sync_end_ns"] >= begin_ns
    for step_type, usual in usual_sync_intervals(sync_intervals).items():
        mine = sync_intervals["step_type"] == step_type
        kept = kept | (
            mine & Spans(usual.windows).hold(sync_intervals["prev_sync_end_ns"], sync_intervals["sync_end_ns"])
        )
    return kept


class _Processes(dict[int, Process]):
    """Processes by number; one that ended long ago is read when something names it: a rank, an owner of memory."""

    def __init__(self, reader: Reader, known: list[Process]) -> None:
        super().__init__((one.process, one) for one in known)
        self._reader = reader

    def __missing__(self, number: int) -> Process:
        for one in self._reader.processes(only_traced=False):
            if one.process == number:
                self[number] = one
                return one
        raise KeyError(number)


class _LiveEvidence(Evidence):
    """The evidence of a window whose streams are at hand."""

    def __init__(
        self, reader: Reader, window: Window, gpu_streams: list[GpuStream], reads: KeptReads, answers: KeptAnswers
    ) -> None:
        super().__init__(reader, window, is_live=True, reads=reads)
        self._gpu_streams, self._answers = gpu_streams, answers

    def read_gpu_streams(self) -> list[GpuStream]:
        return [gpu_stream for gpu_stream in self._gpu_streams if not gpu_stream.is_steps]

    def read_step_gpu_streams(self) -> list[GpuStream]:
        return [gpu_stream for gpu_stream in self._gpu_streams if gpu_stream.is_steps]

    def of_paths(self, key: Hashable, until_ns: int, ask: Callable[[], Answer]) -> Answer:
        """Asked once, as soon as the block of intervals around it is over."""
        is_over = WaitWindows.complete_at_ns(until_ns) <= self.window.end_ns
        return self._answers.get(key, ask) if is_over else ask()

    @cached_property
    def processes(self) -> dict[int, Process]:
        return _Processes(self.reader, self.read_processes())

    def read_processes(self) -> list[Process]:
        """Without those that ended before the window: a server may have started thousands. Workers are kept, though.

        They did the work of the references.
        """
        return self.reader.processes_since(
            self.window.begin_ns, also=[gpu_stream.process for gpu_stream in self._gpu_streams]
        )

    def read_threads(self) -> list[Thread]:
        return self.reader.threads(self.processes)
