"""Data workers are made anew for each pass over the data, and the GPU waits until they have begun to deliver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, at, empty_spans, spent, stays
from ingero.units import format_ns

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "worker-restarts"
MIN_PASSES = 3  # a loader that is made once, or once more for the evaluation, is none
_STATES = ("run", "sleep", "io", "uninterruptible", "unknown")  # who had the CPU meanwhile has rules of its own
_APART_NS = 500_000_000  # between the workers of one pass and those of the next
_EXITED = 0.5  # of the workers that were born before the last pass: they ended, it is not a growing pool


@dataclass(frozen=True, slots=True)
class _Passes:
    """Which intervals wait for new workers. longer_ns: of each, beyond those that do not."""

    is_first: Array
    longer_ns: Array
    workers: int


def find(case: Case) -> Iterator[Finding]:
    """The time with an empty device in which workers were born, beyond that of other intervals."""
    passes = _passes(case)
    if passes is None:
        return
    total_ns = float(passes.longer_ns.sum()) * case.scale
    claims = case.take((Part.IDLE,), _STATES, total_ns)
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
        is_apart=True,
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
    mine = data_workers(case.evidence, case.process)
    born = np.array(sorted(one.start_ns for one in mine), np.int64)
    since_ns = min(case.evidence.window.begin_ns, case.window.begin_ns)
    born = born[(born >= since_ns) & (born < case.evidence.window.end_ns)]
    count = 1 + int((np.diff(born) > _APART_NS).sum()) if len(born) else 0
    before_last = [one for one in mine if len(born) and born[0] <= one.start_ns < born[-1] - _APART_NS]
    if count < MIN_PASSES or sum(one.exit_ns is not None for one in before_last) < _EXITED * len(before_last):
        return None
    begins, ends = (
        case.sync_intervals["prev_sync_end_ns"],
        case.sync_intervals["prev_sync_end_ns"] + case.sync_intervals["idle_ns"],
    )
    first = np.searchsorted(born, begins) < np.searchsorted(born, ends)
    if not first.any():
        return None
    if case.kind is FindingKind.INCIDENT:
        beyond = case.excess_ns
    elif not first.all():
        beyond = case.sync_intervals["idle_ns"] - float(np.median(case.sync_intervals["idle_ns"][~first]))
    else:
        return None
    return _Passes(first, np.where(first, np.maximum(beyond, 0), 0), max(round(len(born) / count), 1))


def _line(case: Case, first: Array) -> CodeLine | None:
    """Where the thread that waits for them was."""
    spans, number = empty_spans(first), case.process.process
    found = [one for state in (SLEEP, RUN) for one in stays(case.evidence, number, case.time_ranges, spans, state)]
    return spent(found).line


RULE = Rule(
    cause=CAUSE,
    title="data workers are re-created for each pass",
    order=39,
    needs=("sync_intervals",),
    wants=("stack_samples",),
    shows="starts of data workers within the time in which the GPU was idle, how often, and what those waits "
    "took longer than others",
    limits="workers are recognized by the name that PyTorch gives them; with fewer than three passes in a recording "
    "nothing is reported",
    find=find,
)
