"""How much longer the same work took on the CPU because its caches were colder, measured by short calls.

A call made once or twice per sync interval runs code and data that lie idle in between, as a loop's own Python does. An
enqueueing call never waits: where it takes twice as long, so does the code around it, without more work in the program.
(Other guests of the host cause this for all of a loop's calls but the hot ones, for seconds.)
In steps found by repetition, the host's time is the whole step, most of it launching, which is hot: caches count as
colder only as far as every short call shows it, launches included.
"""

from __future__ import annotations

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.findings import FindingKind
from ingero.events import STATES
from ingero.ops import OPS, Kind

_RUN_STATE = STATES.index("run")
_ENQUEUES = Kind.COPY | Kind.EVENT_RECORD | Kind.STREAM_WAIT
_ENQUEUE_OPS = {(int(op.source), op.code) for op in OPS if op.kind & _ENQUEUES and not op.kind & Kind.SYNC}
_LAUNCH_OPS = {(int(op.source), op.code) for op in OPS if op.kind & Kind.LAUNCH}
_MAX_CALLS_PER_INTERVAL = 3  # a call made more often keeps its code in the caches
_MAX_CALL_NS = 50_000  # mean; a call this short did not wait for anything
_MIN_CALLS = 50  # in the case and in the baseline, before their means are compared


def cold_cache_ns(case: Case) -> float:
    """By how much CPU time the baseline work before an interval's first launch took longer, in an incident; else 0."""
    if case.kind is not FindingKind.INCIDENT:
        return 0.0
    baseline = sum(
        best.idle_state_ns[_RUN_STATE] * case.count_of(step_type) for step_type, best in case.references.items()
    )
    slowdown = _slowdown_in_steps(case) if case.is_of_steps else _slowdown(case)
    return float(baseline) * (slowdown - 1)


def _slowdown_in_steps(case: Case) -> float:
    """The smallest slowdown among short calls, launches included; at least 1."""
    calls = (
        change for change in case.op_changes if (change.totals.source, change.totals.op) in _ENQUEUE_OPS | _LAUNCH_OPS
    )
    known = [
        change for change in calls if min(change.timed, change.baseline_timed) * case.sync_interval_count >= _MIN_CALLS
    ]
    short = [change for change in known if change.baseline_mean_ns and change.mean_ns <= _MAX_CALL_NS]
    return max(min((change.mean_ns / change.baseline_mean_ns for change in short), default=1.0), 1.0)


def _slowdown(case: Case) -> float:
    """How many times as long rare short enqueue calls took; 1 if no longer, or if there are too few."""
    calls = [change for change in case.op_changes if _is_short_and_rare(change)]
    baseline = sum(change.timed * change.baseline_mean_ns for change in calls)
    if not baseline or sum(change.timed for change in calls) * case.sync_interval_count < _MIN_CALLS:
        return 1.0
    return max(sum(change.ns for change in calls) / baseline, 1.0)


def _is_short_and_rare(change: OpChange) -> bool:
    is_rare = 0 < change.baseline_count <= _MAX_CALLS_PER_INTERVAL and 0 < change.count <= _MAX_CALLS_PER_INTERVAL
    return (change.totals.source, change.totals.op) in _ENQUEUE_OPS and is_rare and change.mean_ns <= _MAX_CALL_NS
