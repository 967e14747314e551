"""What a worker computes for each step in a healthy loop, too: it is on the path of a wait, but no reason for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.waits import GIL, Segment
from ingero.events import CLOCKS
from ingero.store.records import Window

_RUN = CLOCKS.index("run")
_SAME_WORK = 1.1  # workers whose work per step grew by less compute as they did


@dataclass(frozen=True, slots=True)
class Steps:
    """Stretches of time, and how long a step took in them."""

    windows: tuple[Window, ...]
    step_ns: float


def work_growth(evidence: Evidence, workers: Iterable[int], now: Steps, usual: Steps) -> dict[int, float]:
    """By process, which share of its CPU time per step is beyond what it takes in a healthy loop."""
    found = {}
    for process in workers:
        before, here = _run_per_step(evidence, process, usual), _run_per_step(evidence, process, now)
        if before > 0 and here > 0:
            found[process] = 0.0 if here <= _SAME_WORK * before else 1 - before / here
    return found


def _run_per_step(evidence: Evidence, process: int, steps: Steps) -> float:
    run = seconds = 0.0
    for window in steps.windows:
        rows = evidence.clock_seconds(window, process)
        run += float(rows["clock_ns"][:, _RUN].sum())
        seconds += float(rows["period_s"].sum())
    return run / seconds / 1e9 * steps.step_ns if seconds else 0.0


def beyond_usual(segments: Iterable[Segment], growth: Mapping[int, float]) -> Iterator[Segment]:
    """The pieces of a path, those in which a worker ran shortened to what it computed more than usual."""
    for one in segments:
        share = growth.get(one.process, 1.0) if one.state in {"run", GIL} else 1.0
        if share == 1.0:
            yield one
        elif share > 0:
            yield replace(one, begin_ns=one.end_ns - round(one.duration_ns * share))
