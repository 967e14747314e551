"""A few steps at a regular distance took much longer than all others."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, CodeLine, Finding, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION, UNKNOWN
from ingero.events import STATES
from ingero.ops import OPS, Source
from ingero.store.records import Window
from ingero.units import format_ns, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "periodic-spike"
MIN_SPIKES = 4  # three equal distances
MAX_SPREAD_RATIO = 0.10  # standard deviation of the distances, of their mean
MIN_DISTANCE = 5  # steps; a loop that is slow every other step has no spikes
MIN_SHARE = 0.5  # of the lost time that the spikes must hold, and of the spikes that must share a line or call
_MIN_TIMES_MEDIAN = 2.0  # times the median step
_MIN_TIMES_MEDIAN_SPIKE = 0.5  # of the median spike; spikes of one cause are about equally long
_MAX_SPIKES = 64  # only the longest are read
_NAME_BY_OP = {(int(op.source), op.code): op.name for op in OPS}
_CALL_SOURCES = (int(Source.CUDA), int(Source.DRIVER), int(Source.CUDA_GRAPH), int(Source.NCCL))
_PARTS_BY_COLUMN = (
    ("idle_ns", (Part.IDLE,)),
    ("busy_ns", (Part.LAUNCH, Part.GPU)),
    ("return_delay_ns", (Part.RETURN_DELAY,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spikes:
    """The long steps of a case. excess_ns: beyond the median step, by part; distances: in steps."""

    steps: Array
    excess_ns: dict[tuple[Part, ...], float]
    distances: Array

    @property
    def total_ns(self) -> float:
        """Excess over the median, all parts."""
        return sum(self.excess_ns.values())


def explain(case: Case) -> Iterator[Finding]:
    """Long steps at a regular distance, with the line or the call that they have in common."""
    spikes = _spikes(case)
    if spikes is None:
        return
    claims: dict[Bucket, int] = {}
    for parts, ns in spikes.excess_ns.items():
        claims |= case.claimable(parts, (*STATES, GPU_EXECUTION, UNKNOWN), ns)
    lost = sum(claims.values())
    if lost < MIN_SHARE * spikes.total_ns:
        return  # the spikes have another owner
    line, call = _common_line(case, spikes.steps), _common_call(case, spikes.steps)
    if line or call:
        yield _finding(case, spikes, claims, line or (call[1] if call else None), call[0] if call else "")


def _spikes(case: Case) -> _Spikes | None:
    """Regular long steps; None where they are too few, not regular, or not most of the unclaimed lost time."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    gpu_stream = gpu_stream[
        (gpu_stream["sync_end_ns"] > case.window.begin_ns) & (gpu_stream["sync_end_ns"] < case.window.end_ns)
    ]
    if len(gpu_stream) < MIN_SPIKES * MIN_DISTANCE:
        return None
    excess = _excess_ns(case, gpu_stream)
    where = _regular_spikes(excess)
    distances = np.diff(where)
    if len(where) < MIN_SPIKES or distances.std() > MAX_SPREAD_RATIO * distances.mean():
        return None
    if excess[where].sum() < MIN_SHARE * sum(case.unclaimed.values()):
        return None
    excess_by_parts: dict[tuple[Part, ...], float] = {}
    for name, bucket_parts in _PARTS_BY_COLUMN:
        baseline = np.array([_median(gpu_stream, name, int(step_type)) for step_type in gpu_stream["step_type"][where]])
        excess_by_parts[bucket_parts] = float(np.maximum(gpu_stream[name][where] - baseline, 0).sum())
    return _Spikes(steps=gpu_stream[where], excess_ns=excess_by_parts, distances=distances)


def _excess_ns(case: Case, gpu_stream: Array) -> Array:
    """Time of each step beyond its step type's median; 0 for short steps and step types without a baseline."""
    lengths = (gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"]).astype(np.float64)
    excess = np.zeros(len(gpu_stream))
    for step_type in case.references:
        of_type = gpu_stream["step_type"] == step_type
        if of_type.any():
            baseline = np.median(lengths[of_type])
            excess[of_type] = np.where(lengths[of_type] >= _MIN_TIMES_MEDIAN * baseline, lengths[of_type] - baseline, 0)
    return excess


def _regular_spikes(excess: Array) -> Array:
    """The long steps that hold the most time, equally spaced and about equally long.

    Empty where they are less than half of the steps of that length: among enough long steps some are equally spaced by
    chance.
    """
    nothing = np.zeros(0, np.int64)
    where = np.sort(np.argsort(-excess)[:_MAX_SPIKES])
    where = where[excess[where] > 0]
    steps = where.tolist()
    runs = [_regular_run(steps, first, second - first) for i, first in enumerate(steps) for second in steps[i + 1 :]]
    best = max(runs, key=lambda run: float(excess[run].sum()), default=nothing)
    if len(best) < MIN_SPIKES:
        return nothing
    as_long = excess[where] >= _MIN_TIMES_MEDIAN_SPIKE * np.median(excess[best])
    are_alike = bool((excess[best] >= _MIN_TIMES_MEDIAN_SPIKE * np.median(excess[best])).all())
    return best if are_alike and len(best) >= MIN_SHARE * as_long.sum() else nothing


def _regular_run(where: Sequence[int], first: int, distance: int) -> Array:
    """Positions from `where` (ascending) that follow `first` at this distance, each close enough to where it is due."""
    run = [first]
    while distance >= MIN_DISTANCE:
        due = run[-1] + distance
        after = bisect_left(where, due)
        nearest = min(where[max(after - 1, 0) : after + 1], key=lambda at: abs(at - due))
        if abs(nearest - due) > MAX_SPREAD_RATIO * distance or nearest <= run[-1]:
            break
        run.append(nearest)
    return np.array(run)


def _median(gpu_stream: Array, name: str, step_type: int) -> float:
    return float(np.median(gpu_stream[name][gpu_stream["step_type"] == step_type]))


def _common_line(case: Case, steps: Array) -> CodeLine | None:
    """The program's line at which the launching thread was in most of the spikes, outside calls.

    Samples in garbage collection are left out: that has a rule of its own, which names it once it is seen often enough.
    """
    if not case.evidence.reader.is_recorded("raw_stack_samples"):
        return None
    samples = case.evidence.reader.sample_rows(_window(steps), process=case.process.process)
    samples = samples[samples["is_collecting"] == 0]
    seen: Counter[CodeLine] = Counter()
    for step in steps:
        inside = (samples["time_ns"] >= step["prev_sync_end_ns"]) & (samples["time_ns"] < step["sync_end_ns"])
        weight_by_line: dict[CodeLine, int] = defaultdict(int)
        for sample in samples[inside & (samples["tid"] == step["prev_sync_tid"])]:
            if line := case.evidence.own_line(int(sample["stack_hash"])):
                weight_by_line[line] += int(sample["weight_ns"])
        if weight_by_line:
            seen[max(weight_by_line, key=lambda line: weight_by_line[line])] += 1
    common: CodeLine | None = _most_common(seen, len(steps))
    return common


def _common_call(case: Case, steps: Array) -> tuple[str, CodeLine | None] | None:
    """The recorded call that took half of most spikes, with its line."""
    calls = case.evidence.events(_window(steps), _CALL_SOURCES, case.process.process)
    seen: Counter[tuple[int, int, int]] = Counter()
    for step in steps:
        inside = (calls["start_ns"] >= step["prev_sync_end_ns"]) & (calls["start_ns"] < step["sync_end_ns"])
        long = calls[inside & (calls["duration_ns"] >= MIN_SHARE * (step["sync_end_ns"] - step["prev_sync_end_ns"]))]
        seen.update({(int(call["source"]), int(call["op"]), int(call["stack_hash"])) for call in long})
    common = _most_common(seen, len(steps))
    if common is None:
        return None
    source, op, stack_hash = common
    return _NAME_BY_OP.get((source, op), "a call"), case.evidence.own_line(stack_hash)


def _most_common(seen: Counter[Any], spikes: int) -> Any:
    """What most spikes have in common; None where there is nothing."""
    best = seen.most_common(1)
    return best[0][0] if best and best[0][1] >= MIN_SHARE * spikes else None


def _window(steps: Array) -> Window:
    return Window(begin_ns=int(steps["prev_sync_end_ns"][0]), end_ns=int(steps["sync_end_ns"][-1]) + 1)


def _finding(case: Case, spikes: _Spikes, claims: dict[Bucket, int], line: CodeLine | None, call: str) -> Finding:
    lost = sum(claims.values())
    count, every = len(spikes.steps), float(spikes.distances.mean())
    each = format_ns(spikes.total_ns / count)
    where = f" in {call}" if call else ""
    where += f", {line}" if line else ""
    return Finding(
        cause=CAUSE,
        resource="steps",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} in {count} of its steps, one in {every:.0f}, each {each} "
        f"longer than the others{where}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"{count} steps took {each} longer than those between them{where}",
                seen_ns=lost,
                expected_ns=0,
                structure=f"they held {format_percent(spikes.total_ns / max(case.lost_ns, 1))} of the lost time",
                order=f"{every:.0f} steps from one to the next, give or take {spikes.distances.std():.1f}",
            ),
        ),
        fixes=(Fix(text="run this line less often, or in its own thread or process"),),
        evidence={
            "steps between spikes": round(every, 1),
            "spikes": count,
            "each (ns)": int(spikes.total_ns / count),
            "spread (ratio)": round(float(spikes.distances.std() / every), 3),
        },
    )


RULE = Rule(
    cause=CAUSE,
    title="periodic slow steps",
    order=85,
    needs=("sync_intervals",),
    improves_with=("stack_samples",),
    shows="steps at a regular distance that hold most of the lost time, with the line or the call they have in common",
    limits="claims only what no other cause owns, and only from four spikes on; without samples or recorded calls "
    "there is no name for the spike, and it stays unexplained",
    explain=explain,
)
