"""Where the affected process lost its time: the line of Python and the call on its critical path, against the baseline.

A rule that proves a line has said so; for the others the line is that of the calls, or of the samples outside calls, in
the part of the steps in which the time was lost, that grew most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.cases.call_growth import kind_of_op
from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.recorded import SAMPLES
from ingero.diagnose.findings import Bucket, CodeLine, Moment, Part, Where
from ingero.diagnose.samples.stack_samples import MIN_SAMPLES, RUN, SLEEP, Stay, host_spans, stays
from ingero.ops import BY_CODE, Kind, Source
from ingero.store.records import CallSums, Window

Array = np.ndarray[Any, np.dtype[Any]]
_Place: TypeAlias = "tuple[str, int, str]"  # file, line, function

_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
_MOST_NS = 30_000_000_000  # of a time range is read, around where most was lost
_MOST_CALLS = 200_000  # and of the baseline; more would take seconds to sum up and change no mean
_MAIN = 0.8  # of the recorded calls of an operation, before its exact sums are those of one line
_WAITS = Kind.SYNC | Kind.COPY | Kind.ALLOC | Kind.FREE
_OF_EVENT = "this is about the process as a whole, not about one line"
_SWITCHED_OFF = "stacks were off (--no-stack)"
_STOPPED = "the overhead limiter had stopped taking stacks"
_NO_STACKS = "no stacks were recorded"
_NONE_FOUND = "no recorded call or sample of the critical-path threads in this time range has a stack"


@dataclass(slots=True)
class _Sums:
    """Of recorded calls."""

    count: int = 0
    sum_ns: int = 0
    max_ns: int = 0

    def add(self, one: CallSums) -> None:
        """Takes more calls in."""
        self.count += one.count
        self.sum_ns += one.sum_ns
        self.max_ns = max(self.max_ns, one.max_ns)

    @property
    def mean_ns(self) -> float | None:
        """Of one call; None where there is none."""
        return self.sum_ns / self.count if self.count else None


@dataclass(slots=True)
class _Calls:
    """Recorded calls of one operation at one line."""

    source: int
    op: int
    line: CodeLine
    now: _Sums = field(default_factory=_Sums)
    baseline: _Sums = field(default_factory=_Sums)

    def grown_ns(self, scale: float) -> float:
        """How much more of it there is than in the baseline; scale: by what to multiply that for as many steps."""
        return self.now.sum_ns - scale * self.baseline.sum_ns

    def is_any(self, kinds: Kind) -> bool:
        """Whether it is a call of one of these kinds."""
        return bool(kind_of_op(self.source, self.op) & kinds)


@dataclass(frozen=True, slots=True)
class _Outside:
    """Sampled time outside calls at one line."""

    line: CodeLine
    now_ns: float
    baseline_ns: float  # of as many steps
    count: int
    state: str

    @property
    def grown_ns(self) -> float:
        return self.now_ns - self.baseline_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is known of a case. now, baseline: the time ranges that were looked at; scale: steps of these per step of
    those."""

    case: Case
    now: tuple[Window, ...]
    baseline: tuple[Window, ...]
    scale: float
    calls: list[_Calls]

    def most_grown(self, calls: Sequence[_Calls]) -> _Calls:
        """Of several."""
        return max(calls, key=lambda one: (one.grown_ns(self.scale), one.now.sum_ns))


def where_of(case: Case, line: CodeLine | None, claims: Mapping[Bucket, int]) -> Where:
    """Of one case. line: the one that its cause has proven, if it has; claims: the lost time that it explains."""
    seen = _seen(case)
    if line:
        return _at_line(seen, line)
    lost, outside = claims or case.buckets, _outside(case)
    kinds = _kinds_of_waits(lost)
    found = _in_a_wait(seen, outside, kinds) if kinds else _in_the_host(seen, outside)
    return found or Where(why_not=_why_not(seen))


def where_of_event(line: CodeLine | None) -> Where:
    """Of what is about no step: the line that its rule has, if any."""
    return Where(line=line) if line else Where(why_not=_OF_EVENT)


def _kinds_of_waits(lost: Mapping[Bucket, int]) -> Kind:
    """The calls in whose waits for the GPU most was lost; none where most was lost before them."""
    return_delay_ns = sum(ns for bucket, ns in lost.items() if bucket.part is Part.RETURN_DELAY)
    device_ns = sum(ns for bucket, ns in lost.items() if bucket.part is Part.GPU)
    if 2 * (return_delay_ns + device_ns) <= sum(lost.values()):
        return Kind.NONE
    return Kind.SYNC if return_delay_ns > device_ns else _WAITS


def _seen(case: Case) -> _Seen:
    now, baseline = _looked_at(case), _shortened(case, case.baselines)
    steps, before = (sum(map(case.sync_intervals_in, windows)) for windows in (now, baseline))
    return _Seen(
        case=case,
        now=now,
        baseline=baseline,
        scale=steps / before if before else 0.0,
        calls=_calls(case, now, baseline),
    )


def _looked_at(case: Case) -> tuple[Window, ...]:
    """The time ranges of a case, of long ones the part around where most was lost."""
    if case.window.duration_ns <= _MOST_NS or not case.timeline:
        return _shortened(case, case.time_ranges)
    worst: Moment = max(case.timeline, key=lambda one: one.lost_ratio)
    begin = min(max(worst.begin_ns - _MOST_NS // 2, case.window.begin_ns), case.window.end_ns - _MOST_NS)
    around = Window(begin_ns=begin, end_ns=begin + _MOST_NS)
    # where these are too many calls, from the worst moment on: it is what the incident is about
    return _shortened(case, [around] if _holds_few(case, around) else [replace(around, begin_ns=worst.begin_ns)])


def _holds_few(case: Case, window: Window) -> bool:
    most = _MOST_CALLS + 1
    return case.evidence.reader.first_calls(window, process=case.process.process, most=most)[0] < most


def _shortened(case: Case, windows: Iterable[Window]) -> tuple[Window, ...]:
    """The first of them, together at most so long, and with at most so many recorded calls."""
    found, left_ns, left = [], _MOST_NS, _MOST_CALLS
    for one in windows:
        if left_ns <= 0 or left <= 0:
            break
        window = replace(one, end_ns=min(one.end_ns, one.begin_ns + left_ns))
        count, last_ns = case.evidence.reader.first_calls(window, process=case.process.process, most=left)
        left -= count
        found.append(window if left else replace(window, end_ns=last_ns + 1))
        left_ns -= found[-1].duration_ns
    return tuple(found)


# Calls


def _calls(case: Case, now: Sequence[Window], baseline: Sequence[Window]) -> list[_Calls]:
    """The recorded calls of the critical-path threads by operation and line; of the others where these have none."""
    found: dict[tuple[int, int, _Place], _Calls] = {}
    path = _path_threads(case)
    for windows, is_now in ((now, True), (baseline, False)):
        for window in windows:
            for sums, line in _placed(case, window, path):
                key = (sums.source, sums.op, _place(line))
                one = found.setdefault(key, _Calls(sums.source, sums.op, line))
                (one.now if is_now else one.baseline).add(sums)
    return [one for one in found.values() if one.now.count]


def _placed(case: Case, window: Window, path: Sequence[int]) -> Iterator[tuple[CallSums, CodeLine]]:
    process = case.process.process
    calls = case.evidence.reader.call_sums(window, process=process, sources=_SOURCES)
    calls = [one for one in calls if one.tid in path] or calls
    case.evidence.stacks.read([one.stack_hash for one in calls])
    for one in calls:
        line = case.evidence.own_line(one.stack_hash)
        stack = case.evidence.stacks.of(one.stack_hash)
        if stack is not None and stack.is_a_librarys:  # the line that a person can change is that of who waits for it
            line = case.evidence.call_line(window, process, one.source, one.op) or line
        if line:
            yield one, line


def _path_threads(case: Case) -> list[int]:
    """Those that begin, launch and end the steps, and those that launch while another one waits for them."""
    own = np.unique(
        np.concatenate([case.sync_intervals[name] for name in ("prev_sync_tid", "first_launch_tid", "sync_tid")])
    ).tolist()
    return sorted({*own, *case.evidence.launching(case.process.process).threads})


def _place(line: CodeLine) -> _Place:
    return line.file, line.line, line.function


def _at_line(seen: _Seen, line: CodeLine) -> Where:
    """What the line of a rule did: its dearest call, else what the critical-path threads, or whose it is, did there."""
    if mine := [one for one in seen.calls if _place(one.line) == _place(line)]:
        return replace(_of_call(seen, seen.most_grown(mine)), line=line)
    outside = next((one for one in _outside(seen.case) if _place(one.line) == _place(line)), None)
    if outside:
        return replace(_of_outside(seen.case, outside), line=line)
    return Where(line=line, who=_who_is_at(seen, line))


def _who_is_at(seen: _Seen, line: CodeLine) -> str:
    """The thread of the process or of its workers that was at a line most; "" where none was seen there."""
    evidence, best = seen.case.evidence, (0, "")
    for number in seen.case.members:
        found = [*stays(evidence, number, seen.now, None, RUN), *stays(evidence, number, seen.now, None, SLEEP)]
        for one in found:
            if one.line and _place(one.line) == _place(line):
                best = max(best, (one.ns, f"{_name(seen.case, one.tid)} [{one.tid}]"))
    return best[1]


def _name(case: Case, tid: int) -> str:
    return case.evidence.thread_names.get(tid) or "thread"


def _of_call(seen: _Seen, one: _Calls) -> Where:
    """With what such a call took on average: of all of them where they are counted as one, else of the recorded."""
    alike = [other for other in seen.calls if (other.source, other.op) == (one.source, one.op)]
    is_main = one.now.count >= _MAIN * sum(other.now.count for other in alike)
    means = (_sync_means(seen.case, one) or _exact_means(seen, one)) if is_main else None
    mean_ns, baseline_ns = means or (one.now.sum_ns / one.now.count, one.baseline.mean_ns)
    return Where(
        line=one.line,
        call=BY_CODE[Source(one.source), one.op].name,
        mean_ns=round(mean_ns),
        baseline_ns=None if baseline_ns is None else round(baseline_ns),
        longest_ns=one.now.max_ns,
        is_exact=means is not None,
    )


def _sync_means(case: Case, one: _Calls) -> tuple[float, float | None] | None:
    """Of the sync that ends each interval: from its begin to its return, of every interval."""
    if case.is_of_steps or not kind_of_op(one.source, one.op) & Kind.SYNC or not len(case.sync_intervals):
        return None
    own = case.process.process
    baseline = [case.evidence.gpu_stream_in(window, own) for window in case.baselines]
    lengths = np.concatenate(
        [np.zeros(0, np.int64), *(mine["sync_end_ns"] - mine["sync_start_ns"] for mine in baseline)]
    )
    return float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["sync_start_ns"]).mean()), float(
        lengths.mean()
    ) if len(lengths) else None


def _exact_means(seen: _Seen, one: _Calls) -> tuple[float, float | None] | None:
    """Of every call of the operation, by the seconds that these time ranges touch."""
    evidence, process = seen.case.evidence, seen.case.process.process
    means: list[float | None] = []
    for windows in (seen.now, seen.baseline):
        spans = tuple(evidence.reader.op_spans(windows, process=process)) if windows else ()
        totals = evidence.ops(spans, process) if spans else []
        mine = next((total for total in totals if (total.source, total.op) == (one.source, one.op)), None)
        means.append(mine.sum_ns / mine.timed if mine and mine.timed else None)
    return (means[0], means[1]) if means[0] is not None else None


# Outside of calls


def _outside(case: Case) -> list[_Outside]:
    """Where the critical-path threads were outside calls while the GPU waited for them, what grew most first."""
    if not len(case.sync_intervals):
        return []
    now, before, scale = case.host_stays
    own, spans = case.process.process, host_spans(case.sync_intervals)
    baseline = np.concatenate(
        [case.evidence.no_sync_intervals, *(case.evidence.sync_intervals(one, own) for one in case.baselines)]
    )
    slept = stays(case.evidence, own, (case.window,), spans, SLEEP)
    slept_before = stays(case.evidence, own, case.baselines, host_spans(baseline), SLEEP) if len(baseline) else []
    sleep_scale = len(case.sync_intervals) / max(len(baseline), 1)
    found = [*_by_line(now, before, scale, "running"), *_by_line(slept, slept_before, sleep_scale, "waiting")]
    return sorted(found, key=lambda one: -one.grown_ns)


def _by_line(now: Iterable[Stay], before: Iterable[Stay], scale: float, state: str) -> list[_Outside]:
    lines: dict[_Place, CodeLine] = {}
    sums: dict[_Place, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for found, index in ((now, 0), (before, 1)):
        for one in found:
            if one.line:
                lines.setdefault(_place(one.line), one.line)
                sums[_place(one.line)][index] += one.ns if index == 0 else scale * one.ns
                sums[_place(one.line)][2] += one.count if index == 0 else 0
    return [_Outside(lines[key], ns, baseline, int(count), state) for key, (ns, baseline, count) in sums.items() if ns]


def _of_outside(case: Case, one: _Outside) -> Where:
    """With what a step spent there, where there are samples enough to say so."""
    steps = max(len(case.sync_intervals), 1)
    is_enough = one.count >= MIN_SAMPLES
    return Where(
        line=one.line,
        state=one.state,
        mean_ns=round(one.now_ns / steps) if is_enough else None,
        baseline_ns=round(one.baseline_ns / steps) if is_enough and case.baselines else None,
        per=case.evidence.main_streams[case.process.process].noun if is_enough else "",
    )


# Which of them


def _in_a_wait(seen: _Seen, outside: Sequence[_Outside], kinds: Kind) -> Where | None:
    """Time was lost in waits for the GPU: at the call of these kinds that took most more of them."""
    if mine := [one for one in seen.calls if one.is_any(kinds)] or seen.calls:
        return _of_call(seen, seen.most_grown(mine))
    return _of_outside(seen.case, outside[0]) if outside else None


def _in_the_host(seen: _Seen, outside: Sequence[_Outside]) -> Where | None:
    """Time was lost before the waits: outside calls or in those that launch; else after the sync that came before."""
    mine = [one for one in seen.calls if not one.is_any(_WAITS)]
    best = seen.most_grown(mine) if mine else None
    grown_ns = best.grown_ns(seen.scale) if best else 0.0
    enough = [one for one in outside if one.count >= MIN_SAMPLES]
    if enough and enough[0].grown_ns >= max(grown_ns, 1):
        return _of_outside(seen.case, enough[0])
    if best and grown_ns > 0:
        return _of_call(seen, best)
    return _of_outside(seen.case, outside[0]) if outside else _in_a_wait(seen, outside, _WAITS)


def _why_not(seen: _Seen) -> str:
    case, process = seen.case, seen.case.process.process
    has_calls = any(case.evidence.reader.call_sums(one, process=process, sources=_SOURCES) for one in seen.now)
    if has_calls or (case.evidence.samples(case.time_ranges, process)["stack_hash"] != 0).any():
        return _NONE_FOUND
    if case.evidence.were_stacks_off:
        return _SWITCHED_OFF
    return _STOPPED if case.evidence.gaps.missing_ns((SAMPLES,), case.time_ranges) else _NO_STACKS
