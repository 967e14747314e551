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
from ingero.diagnose.lost_time.buckets import DEVICE, UNKNOWN
from ingero.events import STATES
from ingero.ops import OPS, Source
from ingero.store.records import Window
from ingero.units import format_ns, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "periodic-spike"
MIN_SPIKES = 4
MOST_SPREAD = 0.10  # one sigma of the distances, of their mean
MIN_DISTANCE = 5  # steps; a loop that is slow every other step has no spikes
MIN_SHARE = 0.5  # of the lost time that the spikes must hold, and of the spikes that must have the same name
_MIN_LENGTH = 2.0  # usual steps
_LIKE_THE_OTHERS = 0.5  # of their median; spikes of one cause are about as long
_MOST_SPIKES = 64  # that are looked at, the longest
_NAMES = {(int(op.source), op.code): op.name for op in OPS}
_CALLS = (int(Source.CUDA), int(Source.DRIVER), int(Source.CUDA_GRAPH), int(Source.NCCL))
_PARTS = (("idle_ns", (Part.IDLE,)), ("busy_ns", (Part.LAUNCH, Part.GPU)), ("return_delay_ns", (Part.RETURN_DELAY,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spikes:
    """The long steps of a case. excess_ns: beyond the usual step, by part; distances: in steps."""

    steps: Array
    excess_ns: dict[tuple[Part, ...], float]
    distances: Array

    @property
    def total_ns(self) -> float:
        """What all of them took beyond usual steps."""
        return sum(self.excess_ns.values())


def find(case: Case) -> Iterator[Finding]:
    """Long steps at a regular distance, with the line or the call that they have in common."""
    spikes = _spikes(case)
    if spikes is None:
        return
    claims: dict[Bucket, int] = {}
    for parts, ns in spikes.excess_ns.items():
        claims |= case.take(parts, (*STATES, DEVICE, UNKNOWN), ns)
    lost = sum(claims.values())
    if lost < MIN_SHARE * spikes.total_ns:
        return  # the spikes have another owner
    line, call = _line(case, spikes.steps), _call(case, spikes.steps)
    if line or call:
        yield _finding(case, spikes, claims, line or (call[1] if call else None), call[0] if call else "")


def _spikes(case: Case) -> _Spikes | None:
    """None where they are too few, not regular, or not most of what is left of the lost time."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    gpu_stream = gpu_stream[
        (gpu_stream["sync_end_ns"] > case.window.begin_ns) & (gpu_stream["sync_end_ns"] < case.window.end_ns)
    ]
    if len(gpu_stream) < MIN_SPIKES * MIN_DISTANCE:
        return None
    excess = _excess_ns(case, gpu_stream)
    where = _regular(excess)
    distances = np.diff(where)
    if len(where) < MIN_SPIKES or distances.std() > MOST_SPREAD * distances.mean():
        return None
    if excess[where].sum() < MIN_SHARE * sum(case.left.values()):
        return None
    parts: dict[tuple[Part, ...], float] = {}
    for name, of in _PARTS:
        usual = np.array([_median(gpu_stream, name, int(key)) for key in gpu_stream["step_type"][where]])
        parts[of] = float(np.maximum(gpu_stream[name][where] - usual, 0).sum())
    return _Spikes(steps=gpu_stream[where], excess_ns=parts, distances=distances)


def _excess_ns(case: Case, gpu_stream: Array) -> Array:
    """What each step took beyond the median of its class; 0 for short ones and for classes without a reference."""
    lengths = (gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"]).astype(np.float64)
    excess = np.zeros(len(gpu_stream))
    for key in case.usual:
        mine = gpu_stream["step_type"] == key
        if mine.any():
            usual = np.median(lengths[mine])
            excess[mine] = np.where(lengths[mine] >= _MIN_LENGTH * usual, lengths[mine] - usual, 0)
    return excess


def _regular(excess: Array) -> Array:
    """The long steps that hold most, with one distance from each to the next and about one length.

    None where they are less than half of the steps as long as they are: among enough long steps some are regular.
    """
    nothing = np.zeros(0, np.int64)
    where = np.sort(np.argsort(-excess)[:_MOST_SPIKES])
    where = where[excess[where] > 0]
    steps = where.tolist()
    runs = [_run(steps, first, second - first) for i, first in enumerate(steps) for second in steps[i + 1 :]]
    best = max(runs, key=lambda run: float(excess[run].sum()), default=nothing)
    if len(best) < MIN_SPIKES:
        return nothing
    like = excess[where] >= _LIKE_THE_OTHERS * np.median(excess[best])
    are_alike = bool((excess[best] >= _LIKE_THE_OTHERS * np.median(excess[best])).all())
    return best if are_alike and len(best) >= MIN_SHARE * like.sum() else nothing


def _run(where: Sequence[int], first: int, distance: int) -> Array:
    """Those of `where` (ascending) that follow `first` at this distance, each near enough to where it is due."""
    found = [first]
    while distance >= MIN_DISTANCE:
        due = found[-1] + distance
        after = bisect_left(where, due)
        nearest = min(where[max(after - 1, 0) : after + 1], key=lambda at: abs(at - due))
        if abs(nearest - due) > MOST_SPREAD * distance or nearest <= found[-1]:
            break
        found.append(nearest)
    return np.array(found)


def _median(gpu_stream: Array, name: str, key: int) -> float:
    return float(np.median(gpu_stream[name][gpu_stream["step_type"] == key]))


def _line(case: Case, steps: Array) -> CodeLine | None:
    """The own line at which the feeding thread was in most of the spikes, outside calls.

    Not where it collected garbage: that has a rule of its own, which names it as soon as it was seen often enough.
    """
    if not case.evidence.reader.is_recorded("raw_stack_samples"):
        return None
    samples = case.evidence.reader.sample_rows(_window(steps), process=case.process.process)
    samples = samples[samples["is_collecting"] == 0]
    seen: Counter[CodeLine] = Counter()
    for step in steps:
        inside = (samples["time_ns"] >= step["prev_sync_end_ns"]) & (samples["time_ns"] < step["sync_end_ns"])
        spent: dict[CodeLine, int] = defaultdict(int)
        for one in samples[inside & (samples["tid"] == step["prev_sync_tid"])]:
            if line := case.evidence.own_line(int(one["stack_hash"])):
                spent[line] += int(one["weight_ns"])
        if spent:
            seen[max(spent, key=lambda line: spent[line])] += 1
    common: CodeLine | None = _common(seen, len(steps))
    return common


def _call(case: Case, steps: Array) -> tuple[str, CodeLine | None] | None:
    """The recorded call that took half of most of the spikes, with its line."""
    calls = case.evidence.events(_window(steps), _CALLS, case.process.process)
    seen: Counter[tuple[int, int, int]] = Counter()
    for step in steps:
        inside = (calls["start_ns"] >= step["prev_sync_end_ns"]) & (calls["start_ns"] < step["sync_end_ns"])
        long = calls[inside & (calls["duration_ns"] >= MIN_SHARE * (step["sync_end_ns"] - step["prev_sync_end_ns"]))]
        seen.update({(int(one["source"]), int(one["op"]), int(one["stack_hash"])) for one in long})
    common = _common(seen, len(steps))
    if common is None:
        return None
    source, op, stack_hash = common
    return _NAMES.get((source, op), "a call"), case.evidence.own_line(stack_hash)


def _common(seen: Counter[Any], spikes: int) -> Any:
    """What most of the spikes have in common; None where they have nothing."""
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
    wants=("stack_samples",),
    shows="steps at a regular distance that hold most of the lost time, with the line or the call they have in common",
    limits="claims only what no other cause owns, and only from four spikes on; without samples or recorded calls "
    "there is no name for the spike, and it stays unexplained",
    find=find,
)
