"""Work that a worker does for each step of a healthy loop too: on the critical path of a wait, but no reason for it.

Where a wait went into such work, the work began late, so that the path continues at what came before it in the
worker's step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import GIL, PathSegment
from ingero.events import STATES
from ingero.store.arrays.spans import Spans, length_ns
from ingero.store.records import Window
from ingero.units import SECOND_NS

_MAX_SAME_WORK_RATIO = 1.1  # work per step that grew by less is the same work
_MIN_SEEN_RATIO = 0.5  # of the seconds of the worker seen longest: less may be a single second that reaches outside
_MIN_INSIDE = 0.99  # of a second, before it lies inside a time range
_COUNTED_STATES = ("run", "runq")  # states that count as work of a worker

Array = np.ndarray[Any, np.dtype[Any]]
WorkGrowth = Mapping[tuple[int, str], float]


@dataclass(frozen=True, slots=True)
class Steps:
    """Time ranges, the process whose steps are meant, and the mean length of these steps, ns."""

    windows: tuple[Window, ...]
    process: int
    step_ns: float


def work_growth(
    evidence: Evidence, workers: Iterable[int], now: Steps, baseline: Steps, alike: Collection[int] = ()
) -> dict[tuple[int, str], float]:
    """By process and state, the share of its time per step that is beyond its time per step in a healthy loop, 0 to 1.

    alike: workers that do the same work: those of the healthy loop stand in for one that was started after it.
    """
    seen = {worker: _per_step(_seconds(evidence, worker, baseline.windows)[0], baseline.step_ns) for worker in workers}
    longest, model = max((seen[one] for one in alike if one in seen), default=(0.0, {}), key=lambda one: one[0])
    growth = {}
    for process, (seconds, own) in seen.items():
        before = model if process in alike and seconds < _MIN_SEEN_RATIO * longest else own
        rows, are_inside = _seconds(evidence, process, now.windows)
        _, here = _per_step(rows, now.step_ns)
        if not are_inside:
            here = _without_healthy(here, before, rows, *_partial_seconds(evidence, rows, now))
        for state in _COUNTED_STATES:
            if before["run"] > 0 and here[state] > 0:
                is_same = here[state] <= _MAX_SAME_WORK_RATIO * before[state]
                growth[process, state] = 0.0 if is_same else 1 - before[state] / here[state]
    return growth


def _seconds(evidence: Evidence, process: int, windows: tuple[Window, ...]) -> tuple[Array, bool]:
    """A worker's thread-state time by the second, and whether these seconds lie inside the time ranges.

    If any second lies inside, only such seconds: those at the edge of a stall hold work of a healthy loop.
    """
    rows = evidence.thread_state_seconds(windows, process)
    inside = Spans(windows).shares(rows["start_ns"], rows["start_ns"] + rows["period_ns"]) > _MIN_INSIDE
    return (rows[inside], True) if inside.any() else (rows, False)


def _per_step(rows: Array, step_ns: float) -> tuple[float, dict[str, float]]:
    """The seconds that a worker was seen for, and its time per step by state, ns."""
    seconds = float(rows["period_ns"].sum()) / SECOND_NS
    sums = {state: float(rows["state_ns"][:, STATES.index(state)].sum()) for state in _COUNTED_STATES}
    return seconds, {state: ns / seconds / 1e9 * step_ns if seconds else 0.0 for state, ns in sums.items()}


def _partial_seconds(evidence: Evidence, rows: Array, steps: Steps) -> tuple[float, float]:
    """The length of a step in the seconds that a stall fills in part, ns, and the share of their steps in the stall."""
    begins, ends = rows["start_ns"].tolist(), (rows["start_ns"] + rows["period_ns"]).tolist()
    seconds = Spans(Window(begin_ns=begin, end_ns=end) for begin, end in zip(begins, ends, strict=True))
    ended = [evidence.gpu_stream_in(window, steps.process)["sync_end_ns"] for window in seconds.windows]
    own = sum(int(Spans(steps.windows).have_inside(ends).sum()) for ends in ended)
    if not own:
        return steps.step_ns, 1.0
    count = sum(map(len, ended))
    return length_ns(seconds.windows) / count, own / count


def _without_healthy(
    here: Mapping[str, float], before: Mapping[str, float], rows: Array, step_ns: float, share: float
) -> dict[str, float]:
    """A worker's time per step of a stall, limited to what its seconds hold beyond the work of their healthy steps.

    Without the limit, long steps at the pace of those seconds would be too much where the worker did more before the
    stall.
    """
    _, mixed = _per_step(rows, step_ns)
    return {
        state: min(here[state], before[state] + max(mixed[state] - before[state], 0.0) / share)
        for state in _COUNTED_STATES
    }


def beyond_baseline(
    path: Sequence[PathSegment], growth: WorkGrowth, before: Callable[[PathSegment], Iterable[PathSegment]]
) -> list[PathSegment]:
    """The segments of a path without baseline work, which is replaced by the segments that made it late.

    The replacement is at most as long as that work. path: latest first. before: the path that led to a segment.
    """
    reduced = [segment for segment in path if _share(segment, growth) < 1]
    if not reduced:
        return list(path)
    kept = _grown(path, growth)
    baseline_ns = _length_ns(path) - _length_ns(kept)
    if baseline_ns <= 0:
        return kept
    first = min(reduced, key=lambda segment: segment.begin_ns)
    late = _grown(before(first), growth)
    return kept + _shortened(late, min(1.0, baseline_ns / max(_length_ns(late), 1)))


def _grown(segments: Iterable[PathSegment], growth: WorkGrowth) -> list[PathSegment]:
    return [piece for segment in segments for piece in _shortened([segment], _share(segment, growth))]


def _share(segment: PathSegment, growth: WorkGrowth) -> float:
    return growth.get((segment.process, "run" if segment.state == GIL else segment.state), 1.0)


def _shortened(segments: Iterable[PathSegment], share: float) -> list[PathSegment]:
    if share >= 1:
        return list(segments)
    if share <= 0:
        return []
    short = (replace(one, begin_ns=one.end_ns - round(one.duration_ns * share)) for one in segments)
    return [segment for segment in short if segment.duration_ns > 0]


def _length_ns(segments: Iterable[PathSegment]) -> int:
    return sum(segment.duration_ns for segment in segments)
