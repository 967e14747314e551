"""Data workers are re-created for each pass over the data, and the GPU waits until they deliver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, at, group_samples, idle_spans, sampled_time
from ingero.units import format_ns

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "worker-restarts"
MIN_PASSES = 3  # a loader is created once, or once more for the evaluation
_CLAIMED_STATES = ("run", "sleep", "io", "uninterruptible", "unknown")  # waits for a CPU have rules of their own
_MIN_PASS_DISTANCE_NS = 500_000_000  # between the workers of one pass and those of the next
_START_STEP_NS = 10_000_000  # /proc/PID/stat tells the clock tick in which a process was started
_MIN_EXITED_RATIO = 0.5  # of the workers started before the last pass: they ended, so that it is no growing pool


@dataclass(frozen=True, slots=True)
class _Passes:
    """Which sync intervals wait for new workers. longer_ns: how much longer each is than those that do not."""

    is_first: Array
    longer_ns: Array
    workers: int


def explain(case: Case) -> Iterator[Finding]:
    """Time with an idle GPU in which workers were started, beyond that of other intervals."""
    passes = _passes(case)
    if passes is None:
        return
    total_ns = float(passes.longer_ns.sum()) * case.scale
    claims = case.claimable((Part.IDLE,), _CLAIMED_STATES, total_ns)
    lost = sum(claims.values())
    if not lost:
        return
    count = int(passes.is_first.sum())
    times = f", {count} times" if count > 1 else ""
    each = format_ns(int(passes.longer_ns.sum() / count))
    line = _line(case, case.sync_intervals[passes.is_first])
    yield Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} re-creating its {passes.workers} data workers for each pass "
        f"over the data{times}, {each} each{at(line)}",
        claims=claims,
        is_outside_loop=True,
        line=line,
        chain=(
            Link(
                text=f"the GPU was idle for {each} longer whenever workers were started",
                seen_ns=int(total_ns),
                expected_ns=0,
                structure="starts of its workers within the waits, and waits without any beside them",
                order="the old workers ended, new ones began, then came the first batch",
            ),
        ),
        fixes=(
            Fix(text="keep the workers across passes", command="DataLoader(persistent_workers=True)"),
            Fix(text="or let one pass be longer: a sampler that goes through the data several times"),
        ),
        evidence={"passes": count, "workers": passes.workers, "longer (ns per pass)": int(total_ns / count)},
    )


def _passes(case: Case) -> _Passes | None:
    workers_found = data_workers(case.evidence, case.process)
    born = np.array(sorted(worker.start_ns for worker in workers_found), np.int64)
    since_ns = min(case.evidence.window.begin_ns, case.window.begin_ns)
    born = born[(born > since_ns - _START_STEP_NS) & (born < case.evidence.window.end_ns)]
    count = 1 + int((np.diff(born) > _MIN_PASS_DISTANCE_NS).sum()) if len(born) else 0
    before_last = [
        worker
        for worker in workers_found
        if len(born) and born[0] <= worker.start_ns < born[-1] - _MIN_PASS_DISTANCE_NS
    ]
    if count < MIN_PASSES or sum(worker.exit_ns is not None for worker in before_last) < _MIN_EXITED_RATIO * len(
        before_last
    ):
        return None
    waits_for_start = _wait_for_start(case.sync_intervals, born)
    if not waits_for_start.any():
        return None
    if case.kind is FindingKind.INCIDENT:
        longer_ns = case.excess_ns
    elif not waits_for_start.all():
        longer_ns = case.sync_intervals["idle_ns"] - float(np.median(case.sync_intervals["idle_ns"][~waits_for_start]))
    else:
        return None
    return _Passes(
        waits_for_start, np.where(waits_for_start, np.maximum(longer_ns, 0), 0), max(round(len(born) / count), 1)
    )


def _wait_for_start(sync_intervals: Array, born_ns: Array) -> Array:
    """Which sync intervals have an idle part in which a worker was started: per start the longest that it may be."""
    begins, idle_ns = sync_intervals["prev_sync_end_ns"], sync_intervals["idle_ns"]
    waits = np.zeros(len(sync_intervals), bool)
    first = np.searchsorted(begins + idle_ns, born_ns, "right")
    last = np.searchsorted(begins, born_ns + _START_STEP_NS, "left")
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        if begin < end:
            waits[begin + int(np.argmax(idle_ns[begin:end]))] = True
    return waits


def _line(case: Case, first: Array) -> CodeLine | None:
    """Where the thread was that waited for the new workers."""
    spans, number = idle_spans(first), case.process.process
    groups = [
        group
        for state in (SLEEP, RUN)
        for group in group_samples(case.evidence, number, case.time_ranges, spans, state)
    ]
    return sampled_time(groups).line


RULE = Rule(
    cause=CAUSE,
    title="data workers are re-created for each pass",
    order=39,
    needs=("sync_intervals",),
    improves_with=("stack_samples",),
    shows="starts of data workers within the time in which the GPU was idle, how often, and what those waits "
    "took longer than others",
    limits="workers are recognized by the name that PyTorch gives them; with fewer than three passes in a recording "
    "nothing is reported",
    explain=explain,
)
