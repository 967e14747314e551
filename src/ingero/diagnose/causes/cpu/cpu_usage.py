"""How much CPU a job, ingero and everybody else used, in a case and beyond its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.events import STATES
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

_RUN_STATES = (STATES.index("run"),)
_RUNNABLE_STATES = (*_RUN_STATES, STATES.index("runq"), STATES.index("yielded"))
_MIN_OTHERS_CPUS = 0.5  # CPUs that others keep busy
_MAX_DISTANCE_NS = 250_000_000  # a one-second row this far outside a time range still counts for it


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPUs in use on average. agent: by ingero itself; others: by the rest of the host."""

    own: float
    agent: float
    others: float


def cpu_use_growth(case: Case) -> CpuUse | None:
    """CPU use beyond the baseline; None where it is unknown: CPU time is read once per second."""
    if not case.baseline_windows:
        return None
    now, baseline = _cpu_use(case, (case.window,)), _cpu_use(case, case.baseline_windows)
    if not now or not baseline:
        return None
    return CpuUse(now.own - baseline.own, now.agent - baseline.agent, now.others - baseline.others)


def would_fit_without_others(case: Case) -> bool:
    """Whether others keep CPUs busy and, without them, each runnable thread of the job would have one.

    For a case without a baseline, where the others may have been there all the time.
    """
    use = _cpu_use(case, case.time_ranges)
    cpus = max((session.cpu_count for session in case.evidence.sessions), default=0)
    return (
        use is not None
        and use.others >= _MIN_OTHERS_CPUS
        and _mean_threads(case, case.time_ranges, _RUNNABLE_STATES) <= cpus
    )


def _cpu_use(case: Case, windows: Sequence[Window]) -> CpuUse | None:
    rows = case.evidence.cpu_seconds
    middle = rows["time_ns"] - rows["elapsed_ns"] // 2
    near = (
        Window(begin_ns=window.begin_ns - _MAX_DISTANCE_NS, end_ns=window.end_ns + _MAX_DISTANCE_NS)
        for window in windows
    )
    chosen = rows[Spans(near).hold(middle, middle + 1)]
    if not len(chosen):
        return None
    busy = float((chosen["busy_ns"] + chosen["irq_ns"]).sum()) / float(chosen["elapsed_ns"].mean())
    own = _mean_threads(case, windows, _RUN_STATES)
    agent = case.evidence.agent_cpus(windows)
    return CpuUse(own, agent, max(busy / len(np.unique(chosen["time_ns"])) - own - agent, 0.0))


def _mean_threads(case: Case, windows: Sequence[Window], states: Sequence[int]) -> float:
    """How many of the job's threads were in one of these states on average, while any of its processes existed."""
    in_states_ns = 0.0
    periods: dict[int, int] = {}
    for process in (member.process for member in case.evidence.processes.values() if member.pid in case.job):
        rows = case.evidence.thread_state_seconds(windows, process)
        in_states_ns += float(rows["state_ns"][:, list(states)].sum())
        periods |= dict(zip(rows["start_ns"].tolist(), rows["period_ns"].tolist(), strict=True))
    elapsed_ns = sum(periods.values())
    return in_states_ns / elapsed_ns if elapsed_ns else 0.0
