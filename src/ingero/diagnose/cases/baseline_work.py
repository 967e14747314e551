"""What a worker does for each step in a healthy loop, too: it is on the path of a wait, but no reason for it.

Where a wait went into such work, the work began late. So the path goes on to what came before it in the worker's step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import GIL, Segment
from ingero.events import STATES
from ingero.store.arrays.spans import Spans, length_ns
from ingero.store.records import Window
from ingero.units import SECOND_NS

_SAME_WORK = 1.1  # workers whose work per step grew by less compute as they did
_LITTLE = 0.5  # of the seconds of the worker seen longest; less may be one second at the edge that reaches out
_INSIDE = 0.99  # of a second
_COUNTED = ("run", "runq")  # states of a worker whose time per step its clocks tell, whoever waited for it

Array = np.ndarray[Any, np.dtype[Any]]
Growth = Mapping[tuple[int, str], float]


@dataclass(frozen=True, slots=True)
class Steps:
    """Stretches of time, whose steps are meant, and how long one took in them."""

    windows: tuple[Window, ...]
    process: int
    step_ns: float


def work_growth(
    evidence: Evidence, workers: Iterable[int], now: Steps, usual: Steps, alike: Collection[int] = ()
) -> dict[tuple[int, str], float]:
    """By process and state, which share of its time per step in it is beyond what it is in a healthy loop.

    alike: workers that do the same: those of the healthy loop stand for one that was started after it.
    """
    seen = {one: _per_step(_seconds(evidence, one, usual.windows)[0], usual.step_ns) for one in workers}
    longest, model = max((seen[one] for one in alike if one in seen), default=(0.0, {}), key=lambda one: one[0])
    found = {}
    for process, (seconds, own) in seen.items():
        before = model if process in alike and seconds < _LITTLE * longest else own
        rows, are_inside = _seconds(evidence, process, now.windows)
        _, here = _per_step(rows, now.step_ns)
        if not are_inside:
            here = _without_healthy(here, before, rows, *_at_the_edge(evidence, rows, now))
        for state in _COUNTED:
            if before["run"] > 0 and here[state] > 0:
                is_same = here[state] <= _SAME_WORK * before[state]
                found[process, state] = 0.0 if is_same else 1 - before[state] / here[state]
    return found


def _seconds(evidence: Evidence, process: int, windows: tuple[Window, ...]) -> tuple[Array, bool]:
    """What a worker did by the second, and whether those seconds lie inside the time ranges.

    Where any does only those: at the edge of a stall there is work of a healthy loop.
    """
    rows = evidence.thread_state_seconds(windows, process)
    inside = Spans(windows).shares(rows["start_ns"], rows["start_ns"] + rows["period_ns"]) > _INSIDE
    return (rows[inside], True) if inside.any() else (rows, False)


def _per_step(rows: Array, step_ns: float) -> tuple[float, dict[str, float]]:
    """For how many seconds it was there, and its time by state."""
    seconds = float(rows["period_ns"].sum()) / SECOND_NS
    ns = {state: float(rows["state_ns"][:, STATES.index(state)].sum()) for state in _COUNTED}
    return seconds, {state: one / seconds / 1e9 * step_ns if seconds else 0.0 for state, one in ns.items()}


def _at_the_edge(evidence: Evidence, rows: Array, steps: Steps) -> tuple[float, float]:
    """How long a step took in the seconds in which a stall began, and which share of their steps are its own."""
    begins, ends = rows["start_ns"].tolist(), (rows["start_ns"] + rows["period_ns"]).tolist()
    seconds = Spans(Window(begin_ns=begin, end_ns=end) for begin, end in zip(begins, ends, strict=True))
    ended = [evidence.gpu_stream_in(one, steps.process)["sync_end_ns"] for one in seconds.windows]
    own = sum(int(Spans(steps.windows).have_inside(one).sum()) for one in ended)
    if not own:
        return steps.step_ns, 1.0
    count = sum(map(len, ended))
    return length_ns(seconds.windows) / count, own / count


def _without_healthy(
    here: Mapping[str, float], before: Mapping[str, float], rows: Array, step_ns: float, share: float
) -> dict[str, float]:
    """A worker's time per step of a stall, at most what its seconds hold beyond the usual work of their healthy steps.

    At the pace of those seconds, its long steps would be too much where the worker got more done before it.
    """
    _, mixed = _per_step(rows, step_ns)
    return {one: min(here[one], before[one] + max(mixed[one] - before[one], 0.0) / share) for one in _COUNTED}


def beyond_usual(
    path: Sequence[Segment], growth: Growth, before: Callable[[Segment], Iterable[Segment]]
) -> list[Segment]:
    """The pieces of a path without usual work, and in its place those that made it late, as long as it at most.

    path: latest first. before: what led to a piece.
    """
    usual = [one for one in path if _share(one, growth) < 1]
    if not usual:
        return list(path)
    kept = _grown(path, growth)
    usual_ns = _length_ns(path) - _length_ns(kept)
    if usual_ns <= 0:
        return kept
    first = min(usual, key=lambda one: one.begin_ns)
    late = _grown(before(first), growth)
    return kept + _shortened(late, min(1.0, usual_ns / max(_length_ns(late), 1)))


def _grown(segments: Iterable[Segment], growth: Growth) -> list[Segment]:
    return [piece for one in segments for piece in _shortened([one], _share(one, growth))]


def _share(one: Segment, growth: Growth) -> float:
    return growth.get((one.process, "run" if one.state == GIL else one.state), 1.0)


def _shortened(segments: Iterable[Segment], share: float) -> list[Segment]:
    if share >= 1:
        return list(segments)
    if share <= 0:
        return []
    short = (replace(one, begin_ns=one.end_ns - round(one.duration_ns * share)) for one in segments)
    return [one for one in short if one.duration_ns > 0]


def _length_ns(segments: Iterable[Segment]) -> int:
    return sum(one.duration_ns for one in segments)
