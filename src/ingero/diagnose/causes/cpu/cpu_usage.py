"""Whose use of the CPUs grew: that of a job, the recorder's, or that of everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.events import STATES
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

_RUN = (STATES.index("run"),)
_COULD_RUN = (*_RUN, STATES.index("runq"), STATES.index("yielded"))
_MUCH = 0.5  # CPUs that others keep busy
_NEAR_NS = 250_000_000  # a second that lies so far beside a time range is taken for it


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPUs in use on average. agent: by the recorder itself; others: by the rest of the machine."""

    own: float
    agent: float
    others: float


def grown_use(case: Case) -> CpuUse | None:
    """What is beyond the reference; None where it is not known: CPU time is read once a second."""
    if not case.baselines:
        return None
    now, usual = _use(case, (case.window,)), _use(case, case.baselines)
    if not now or not usual:
        return None
    return CpuUse(now.own - usual.own, now.agent - usual.agent, now.others - usual.others)


def would_fit_alone(case: Case) -> bool:
    """Whether others keep CPUs busy, and without them there would be one for each thread of the job that could run.

    For a case that has no reference: those others may have been there all the time.
    """
    use = _use(case, case.time_ranges)
    cpus = max((one.cpu_count for one in case.evidence.sessions), default=0)
    return use is not None and use.others >= _MUCH and _threads(case, case.time_ranges, _COULD_RUN) <= cpus


def _use(case: Case, windows: Sequence[Window]) -> CpuUse | None:
    rows = case.evidence.cpu_seconds
    middle = rows["time_ns"] - rows["elapsed_ns"] // 2
    near = (Window(begin_ns=one.begin_ns - _NEAR_NS, end_ns=one.end_ns + _NEAR_NS) for one in windows)
    chosen = rows[Spans(near).hold(middle, middle + 1)]
    if not len(chosen):
        return None
    busy = float((chosen["busy_ns"] + chosen["irq_ns"]).sum()) / float(chosen["elapsed_ns"].mean())
    own = _threads(case, windows, _RUN)
    agent = case.evidence.agent_cpus(windows)
    return CpuUse(own, agent, max(busy / len(np.unique(chosen["time_ns"])) - own - agent, 0.0))


def _threads(case: Case, windows: Sequence[Window], clocks: Sequence[int]) -> float:
    """In how many of the job's threads one of these clocks ran on average, over the time in which any was there:
    workers come and go.
    """
    spent_ns = 0.0
    periods: dict[int, int] = {}
    for process in (one.process for one in case.evidence.processes.values() if one.pid in case.job):
        rows = case.evidence.thread_state_seconds(windows, process)
        spent_ns += float(rows["state_ns"][:, list(clocks)].sum())
        periods |= dict(zip(rows["start_ns"].tolist(), rows["period_ns"].tolist(), strict=True))
    elapsed_ns = sum(periods.values())
    return spent_ns / elapsed_ns if elapsed_ns else 0.0
