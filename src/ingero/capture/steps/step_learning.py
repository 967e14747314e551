"""Decides when a process's calls are searched for a repeating step, and which call marks it. No clock, no kernel.

A window of calls is written by the kernel and searched as it grows. What is found is believed when the kernel's first
steps hold as much work as those in the window; it is looked for again when steps stop coming although work does, or
when what comes has another pattern.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.decode.call_sequence import MarkerCall, marker_call, regular_marker, search_calls
from ingero.decode.steps import FoundSteps, StepMarker, find_steps

Array = np.ndarray[Any, np.dtype[Any]]

WINDOW_CALLS = 20_000  # thirteen steps of 1,500 calls; what the kernel writes of them costs a thread 2 ms
WINDOW_NS = 5_000_000_000
MAX_WINDOW_CALLS = 60_000  # of the later windows of a program whose step is long
_SEARCH_AGAIN_NS = 400_000_000  # a search takes 10 ms of CPU time
_MIN_CALLS = 60  # fewer are no three steps of anything
MIN_STEP_NS = 500_000  # of what repeats faster, records would cost more than they tell
_SURE_STEPS = 5  # with fewer the window goes on, while it may
_PAUSE_NS, _MAX_PAUSE_NS = 4_000_000_000, 120_000_000_000  # after a window in vain, doubled each time
_TRIAL_STEPS = 3  # of the kernel's own, that must hold the work of those in the window
_SAME_WORK = 1.3  # times as many launches: neither half nor double
_LOST_STEPS = 3  # so much work without a step, and it has changed
_RECENT = 64
_PERIODIC = 0.95  # of the steps equal to those k before, and not to the one before: they are parts of a step
_MAX_PARTS = 8
_MAX_KNOWN = 1000  # kinds of step; texts of a program whose steps all differ would add up
_UNUSUAL = 0.5  # of recent steps of a kind that hardly came before


class LearningPhase(enum.Enum):
    """What is being done for a process."""

    RESTING = enum.auto()  # until `until_ns`
    LOOKING = enum.auto()  # its calls are written
    TRYING = enum.auto()  # the kernel closes steps, and they are not believed yet
    FOLLOWING = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What the kernel side should do. calls: how many to write; 0: no more."""

    calls: int
    marker: MarkerCall | None


class StepLearner:
    """Learns the step of one process. Times are monotonic ns."""

    def __init__(self, now_ns: int) -> None:
        self.phase = LearningPhase.LOOKING  # from its first call on
        self.marker: MarkerCall | None = None
        self.why_not = ""  # nothing was found in the last window
        self._until_ns = now_ns
        self._pause_ns = _PAUSE_NS
        self._window_calls, self._began_ns, self._searched_ns = WINDOW_CALLS, now_ns, now_ns
        self._records: list[Array] = []
        self._searched_count = 0  # of the window's calls
        self._second_ns = now_ns
        self._work = 0.0  # enqueues of a step in the window
        self._since_step = 0  # enqueues, in whole seconds without a step
        self._has_stepped = False  # in this second
        self._trials: list[int] = []
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._known: Counter[str] = Counter()
        self._is_pattern_known = False

    def request(self) -> StepRequest:
        """What the kernel side should do now."""
        return StepRequest(calls=self._window_calls if self.phase is LearningPhase.LOOKING else 0, marker=self.marker)

    def add_calls(self, records: Array, now_ns: int) -> None:
        """Takes calls of the window (`struct sequence_record`); it begins with the first one."""
        if self.phase is not LearningPhase.LOOKING:
            return
        if not self._records:
            self._began_ns = self._searched_ns = now_ns
            self._searched_count = 0
        self._records.append(records)

    def note_enqueues(self, count: int, now_ns: int) -> None:
        """Notes how many calls enqueued work in the last second; the first ones open a window.

        A window's time runs while there are calls: a program that compiles its model is silent in between.
        """
        if not count:
            self._began_ns += now_ns - self._second_ns
        self._second_ns = now_ns
        self._since_step = 0 if self._has_stepped else self._since_step + count
        self._has_stepped = False
        is_due = self.phase is LearningPhase.RESTING and count >= _MIN_CALLS and now_ns >= self._until_ns
        has_stopped = self._since_step > _LOST_STEPS * self._work + _MIN_CALLS
        if is_due or (self.phase is LearningPhase.FOLLOWING and has_stopped):
            self.phase, self._records = LearningPhase.LOOKING, []
        elif self.phase is LearningPhase.TRYING and has_stopped:
            self._give_up(now_ns)

    def search_window(self, now_ns: int) -> None:
        """Searches the window if it has grown enough, and closes it when it is full or old."""
        if self.phase is not LearningPhase.LOOKING:
            return
        count = sum(map(len, self._records))
        if not count:
            return
        is_over = count >= self._window_calls or now_ns - self._began_ns >= self._window_ns
        is_due = count >= max(_MIN_CALLS, self._searched_count + 1) and now_ns - self._searched_ns >= _SEARCH_AGAIN_NS
        if not is_over and not is_due:
            return
        self._searched_ns, self._searched_count = now_ns, count
        if not self._search(np.concatenate(self._records), is_over) and is_over:
            self._give_up(now_ns)

    @property
    def _window_ns(self) -> int:
        return WINDOW_NS * self._window_calls // WINDOW_CALLS

    def _give_up(self, now_ns: int) -> None:
        """Tries again later with more calls, as the step may be long: nothing was found, or it was wrong."""
        if self.phase is LearningPhase.LOOKING and self.marker and self._since_step <= _LOST_STEPS * self._work:
            self.phase, self._is_pattern_known, self._records = LearningPhase.FOLLOWING, True, []
            return  # nothing better than the steps that still come
        self.phase, self.marker, self._records = LearningPhase.RESTING, None, []
        self._until_ns = now_ns + self._pause_ns
        self._pause_ns = min(_MAX_PAUSE_NS, 2 * self._pause_ns)
        self._window_calls = min(MAX_WINDOW_CALLS, 2 * self._window_calls)

    def _search(self, records: Array, is_over: bool) -> bool:
        """Searches the calls, or the newer half of them, for steps: a program first builds its model."""
        for part in (records, records[len(records) // 2 :]):
            calls = search_calls(part)
            found = find_steps(calls)
            best = _best_marker(calls, found) if found else None
            if found is None or best is None:
                self.why_not = "no call occurs exactly once per repetition" if found else "nothing repeats in its calls"
            elif _step_ns(found) < MIN_STEP_NS:
                self.why_not = f"the repeating sequence takes less than {MIN_STEP_NS / 1e6} ms"
            elif is_over or found.count >= _SURE_STEPS:
                self._believe(found, best, calls, part)
                return True
        return False

    def _believe(self, found: FoundSteps, best: StepMarker, calls: Array, records: Array) -> None:
        marker = marker_call(records, best.key, best.tid)
        self._is_pattern_known = marker == self.marker  # what it comes to is what the program does
        end = int(np.searchsorted(calls["start_ns"], found.cut_ns[-1]))
        enqueued = np.append(0, np.cumsum(calls["is_enqueue"]))
        self._work = float(np.median(np.diff(enqueued[np.append(found.first, end)])))  # of a step without a phase in it
        self.marker, self.phase, self._records = marker, LearningPhase.TRYING, []
        self._trials, self._since_step = [], 0
        self._has_stepped = True  # of this second's work most was before there was a marker
        self._recent.clear()

    def step(self, step_type: str, enqueues: int, now_ns: int) -> None:
        """Takes a step that the kernel side has closed. enqueues: 0 if not all of them are traced."""
        self._has_stepped = True
        if self.phase is LearningPhase.TRYING:
            self._count_trial_step(enqueues, now_ns)
        self._recent.append(step_type)
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known[step_type] += 1
        if self.phase is LearningPhase.FOLLOWING and len(self._recent) == _RECENT and not self._is_pattern_known:
            if _are_parts(list(self._recent)) or self._are_unusual():
                self.phase, self._records = LearningPhase.LOOKING, []
            self._recent.clear()

    def _count_trial_step(self, enqueues: int, now_ns: int) -> None:
        self._trials.append(enqueues)
        if len(self._trials) < _TRIAL_STEPS:
            return
        usual = float(np.median(self._trials))
        if usual and not 1 / _SAME_WORK <= max(usual, 1) / max(self._work, 1) <= _SAME_WORK:
            self._give_up(now_ns)
        else:
            self.phase, self._pause_ns, self._window_calls = LearningPhase.FOLLOWING, _PAUSE_NS, WINDOW_CALLS

    def _are_unusual(self) -> bool:
        before = self._known - Counter(self._recent)
        if before.total() < _RECENT:
            return False
        return sum(before[step_type] < _TRIAL_STEPS for step_type in self._recent) > _UNUSUAL * len(self._recent)

    @property
    def is_believed(self) -> bool:
        """Whether the steps are confirmed, so that they are written as rows."""
        return self.phase in (LearningPhase.FOLLOWING, LearningPhase.LOOKING) and self.marker is not None


def _best_marker(calls: Array, found: FoundSteps) -> StepMarker | None:
    """The best marker: a rare call if there is one, as launches may be given up. At a boundary it may appear twice."""
    first = found.markers[0] if found.markers else None
    if first and not first.is_launch:
        return first
    regular = regular_marker(calls, found)
    return first if first and (regular is None or regular.is_launch) else regular


def _step_ns(found: FoundSteps) -> float:
    return float(np.median(np.diff(found.cut_ns))) if len(found.cut_ns) > 1 else 0.0


def _are_parts(types: list[str]) -> bool:
    """Whether several kinds of steps repeat in the same order: then each such round is the step."""
    if _equal(types, 1) >= _UNUSUAL:
        return False
    return any(_equal(types, lag) >= _PERIODIC for lag in range(2, _MAX_PARTS + 1))


def _equal(types: list[str], lag: int) -> float:
    return sum(one == other for one, other in zip(types, types[lag:], strict=False)) / max(len(types) - lag, 1)
