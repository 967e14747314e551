"""How much longer the same work took on the CPU because its caches were colder, as short calls show.

A call that comes once or twice a sync interval runs code and data that lie idle in between, as a loop's own Python
does. One
that only enqueues never waits: where it takes twice as long, so does what is around it, and that is no work of the
program. (Other guests of the machine do so: all of a loop's calls but the hot ones, for seconds.)

In a step by repetition the host's time is all of the step, most of it launching, which is hot: there it is colder as
far as every short call says so, launches among them.
"""

from __future__ import annotations

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.findings import FindingKind
from ingero.events import STATES
from ingero.ops import OPS, Kind

_RUN = STATES.index("run")
_ENQUEUES = Kind.COPY | Kind.EVENT_RECORD | Kind.STREAM_WAIT
_OPS = {(int(op.source), op.code) for op in OPS if op.kind & _ENQUEUES and not op.kind & Kind.SYNC}
_LAUNCHES = {(int(op.source), op.code) for op in OPS if op.kind & Kind.LAUNCH}
_RARE = 3  # times a sync interval; one that comes more often keeps its code in the caches
_SHORT_NS = 50_000  # each: it did not wait for anything
_MIN_CALLS = 50


def colder_ns(case: Case) -> float:
    """Of an incident, by how much CPU time what is usually computed before an interval's first launch took longer."""
    if case.kind is not FindingKind.INCIDENT:
        return 0.0
    usual = sum(one.idle_state_ns[_RUN] * case.count_of(key) for key, one in case.usual.items())
    times = _times_in_steps(case) if case.is_of_steps else _times(case)
    return float(usual) * (times - 1)


def _times_in_steps(case: Case) -> float:
    """How many times as long each of the short calls took, of that which grew least."""
    calls = (one for one in case.op_changes if (one.totals.source, one.totals.op) in _OPS | _LAUNCHES)
    known = [one for one in calls if min(one.timed, one.usual_timed) * case.sync_interval_count >= _MIN_CALLS]
    short = [one for one in known if one.usual_mean_ns and one.mean_ns <= _SHORT_NS]
    return max(min((one.mean_ns / one.usual_mean_ns for one in short), default=1.0), 1.0)


def _times(case: Case) -> float:
    """How many times as long these calls took; 1 where they took no longer, or are too few."""
    calls = [one for one in case.op_changes if _is_telling(one)]
    usual = sum(one.timed * one.usual_mean_ns for one in calls)
    if not usual or sum(one.timed for one in calls) * case.sync_interval_count < _MIN_CALLS:
        return 1.0
    return max(sum(one.ns for one in calls) / usual, 1.0)


def _is_telling(one: OpChange) -> bool:
    is_rare = 0 < one.usual_count <= _RARE and 0 < one.count <= _RARE
    return (one.totals.source, one.totals.op) in _OPS and is_rare and one.mean_ns <= _SHORT_NS
