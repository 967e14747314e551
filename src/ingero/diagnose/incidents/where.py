"""Where the affected process lost its time: the line of Python and the call on its critical path, against the baseline.

A rule may have proven a line. Where none has, it is the line of the calls, or of the samples outside calls, that grew
most in the part of the steps in which the time was lost.
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
from ingero.diagnose.samples.stack_samples import MIN_SAMPLES, RUN, SLEEP, SampleGroup, group_samples, host_spans
from ingero.ops import BY_CODE, Kind, Source
from ingero.store.records import CallSums, Window

Array = np.ndarray[Any, np.dtype[Any]]
_Place: TypeAlias = "tuple[str, int, str]"  # file, line, function

_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
_MAX_READ_NS = 30_000_000_000  # read of a time range, around where most was lost
_MAX_READ_CALLS = 200_000  # read of a time range and of the baseline; more would take seconds and change no mean
_MIN_MAIN_LINE_RATIO = 0.8  # of an operation's recorded calls at one line: then its exact sums count as that line's
_WAIT_KINDS = Kind.SYNC | Kind.COPY | Kind.ALLOC | Kind.FREE
_WHY_NOT_EVENT = "this is about the process as a whole, not about one line"
_WHY_NOT_STACKS_OFF = "stacks were off (--no-stack)"
_WHY_NOT_LIMITED = "the overhead limiter had stopped taking stacks"
_WHY_NOT_RECORDED = "no stacks were recorded"
_WHY_NOT_FOUND = "no recorded call or sample of the critical-path threads in this time range has a stack"


@dataclass(slots=True)
class _CallTotals:
    """Count, sum and maximum of the durations of recorded calls."""

    count: int = 0
    sum_ns: int = 0
    max_ns: int = 0

    def add(self, calls: CallSums) -> None:
        """Adds more calls."""
        self.count += calls.count
        self.sum_ns += calls.sum_ns
        self.max_ns = max(self.max_ns, calls.max_ns)

    @property
    def mean_ns(self) -> float | None:
        """Mean duration of a call; None where there is none."""
        return self.sum_ns / self.count if self.count else None


@dataclass(slots=True)
class _CallsAtLine:
    """Recorded calls of one operation at one line."""

    source: int
    op: int
    line: CodeLine
    now: _CallTotals = field(default_factory=_CallTotals)
    baseline: _CallTotals = field(default_factory=_CallTotals)

    def grown_ns(self, scale: float) -> float:
        """How much longer these calls took together than in the baseline.

        scale: factor that brings the baseline to the same number of steps.
        """
        return self.now.sum_ns - scale * self.baseline.sum_ns

    def is_any(self, kinds: Kind) -> bool:
        """Whether the operation is of one of these kinds."""
        return bool(kind_of_op(self.source, self.op) & kinds)


@dataclass(frozen=True, slots=True)
class _OutsideCalls:
    """Sampled time outside calls at one line."""

    line: CodeLine
    now_ns: float
    baseline_ns: float  # scaled to as many steps
    count: int
    state: str

    @property
    def grown_ns(self) -> float:
        return self.now_ns - self.baseline_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _CaseCalls:
    """The recorded calls of a case.

    now, baseline: the time ranges that were read; scale: steps in the case's ranges per step in the baseline's.
    """

    case: Case
    now: tuple[Window, ...]
    baseline: tuple[Window, ...]
    scale: float
    calls: list[_CallsAtLine]

    def most_grown(self, calls: Sequence[_CallsAtLine]) -> _CallsAtLine:
        """The calls that took most more time than in the baseline."""
        return max(calls, key=lambda call: (call.grown_ns(self.scale), call.now.sum_ns))


def where_of(case: Case, line: CodeLine | None, claims: Mapping[Bucket, int]) -> Where:
    """Where one case lost its time.

    line: the line that the cause has proven, if any; claims: the lost time that the cause explains.
    """
    seen = _seen(case)
    if line:
        return _where_at_line(seen, line)
    lost, outside = claims or case.buckets, _time_outside_calls(case)
    kinds = _wait_kinds_of(lost)
    found = _where_waiting(seen, outside, kinds) if kinds else _where_on_host(seen, outside)
    return found or Where(why_not=_why_not(seen))


def where_of_event(line: CodeLine | None) -> Where:
    """Where an event without steps happened: at the line that its rule has, if any."""
    return Where(line=line) if line else Where(why_not=_WHY_NOT_EVENT)


def _wait_kinds_of(lost: Mapping[Bucket, int]) -> Kind:
    """The kinds of calls in whose waits for the GPU most time was lost; none where most was lost before the waits."""
    return_delay_ns = sum(ns for bucket, ns in lost.items() if bucket.part is Part.RETURN_DELAY)
    device_ns = sum(ns for bucket, ns in lost.items() if bucket.part is Part.GPU)
    if 2 * (return_delay_ns + device_ns) <= sum(lost.values()):
        return Kind.NONE
    return Kind.SYNC if return_delay_ns > device_ns else _WAIT_KINDS


def _seen(case: Case) -> _CaseCalls:
    now, baseline = _windows_to_read(case), _limited(case, case.baseline_windows)
    steps, before = (sum(map(case.sync_intervals_in, windows)) for windows in (now, baseline))
    return _CaseCalls(
        case=case,
        now=now,
        baseline=baseline,
        scale=steps / before if before else 0.0,
        calls=_calls(case, now, baseline),
    )


def _windows_to_read(case: Case) -> tuple[Window, ...]:
    """The time ranges of a case; of a long one, the part around where most was lost."""
    if case.window.duration_ns <= _MAX_READ_NS or not case.timeline:
        return _limited(case, case.time_ranges)
    worst: Moment = max(case.timeline, key=lambda piece: piece.lost_ratio)
    begin = min(max(worst.begin_ns - _MAX_READ_NS // 2, case.window.begin_ns), case.window.end_ns - _MAX_READ_NS)
    around = Window(begin_ns=begin, end_ns=begin + _MAX_READ_NS)
    # where these are too many calls, from the worst moment on: it is what the incident is about
    return _limited(case, [around] if _holds_few(case, around) else [replace(around, begin_ns=worst.begin_ns)])


def _holds_few(case: Case, window: Window) -> bool:
    most = _MAX_READ_CALLS + 1
    return case.evidence.reader.first_calls(window, process=case.process.process, most=most)[0] < most


def _limited(case: Case, windows: Iterable[Window]) -> tuple[Window, ...]:
    """The first windows, up to `_MAX_READ_NS` and `_MAX_READ_CALLS` recorded calls in all."""
    found, left_ns, left = [], _MAX_READ_NS, _MAX_READ_CALLS
    for whole in windows:
        if left_ns <= 0 or left <= 0:
            break
        window = replace(whole, end_ns=min(whole.end_ns, whole.begin_ns + left_ns))
        count, last_ns = case.evidence.reader.first_calls(window, process=case.process.process, most=left)
        left -= count
        found.append(window if left else replace(window, end_ns=last_ns + 1))
        left_ns -= found[-1].duration_ns
    return tuple(found)


# Calls


def _calls(case: Case, now: Sequence[Window], baseline: Sequence[Window]) -> list[_CallsAtLine]:
    """The recorded calls of the critical-path threads by operation and line; where they have none, of all threads."""
    found: dict[tuple[int, int, _Place], _CallsAtLine] = {}
    path = _path_threads(case)
    for windows, is_now in ((now, True), (baseline, False)):
        for window in windows:
            for sums, line in _calls_with_lines(case, window, path):
                key = (sums.source, sums.op, _place(line))
                calls = found.setdefault(key, _CallsAtLine(sums.source, sums.op, line))
                (calls.now if is_now else calls.baseline).add(sums)
    return [calls for calls in found.values() if calls.now.count]


def _calls_with_lines(case: Case, window: Window, path: Sequence[int]) -> Iterator[tuple[CallSums, CodeLine]]:
    process = case.process.process
    calls = case.evidence.reader.call_sums(window, process=process, sources=_SOURCES)
    calls = [call for call in calls if call.tid in path] or calls
    case.evidence.stacks.read([call.stack_hash for call in calls])
    for call in calls:
        line = case.evidence.own_line(call.stack_hash)
        stack = case.evidence.stacks.of(call.stack_hash)
        if stack is not None and stack.is_a_librarys:  # the line that a person can change is that of the waiting caller
            line = case.evidence.call_line(window, process, call.source, call.op) or line
        if line:
            yield call, line


def _path_threads(case: Case) -> list[int]:
    """The threads that begin, launch and end the steps, and those that launch while another one waits for them."""
    own = np.unique(
        np.concatenate([case.sync_intervals[name] for name in ("prev_sync_tid", "first_launch_tid", "sync_tid")])
    ).tolist()
    return sorted({*own, *case.evidence.launching(case.process.process).threads})


def _place(line: CodeLine) -> _Place:
    return line.file, line.line, line.function


def _where_at_line(seen: _CaseCalls, line: CodeLine) -> Where:
    """What ran at a rule's line: its costliest call, else time outside calls, else the thread that was there most."""
    if mine := [call for call in seen.calls if _place(call.line) == _place(line)]:
        return replace(_where_call(seen, seen.most_grown(mine)), line=line)
    outside = next((one for one in _time_outside_calls(seen.case) if _place(one.line) == _place(line)), None)
    if outside:
        return replace(_where_outside(seen.case, outside), line=line)
    return Where(line=line, who=_thread_at(seen, line))


def _thread_at(seen: _CaseCalls, line: CodeLine) -> str:
    """The thread of the process or its workers that was at a line longest; "" where none was sampled there."""
    evidence, best = seen.case.evidence, (0, "")
    for number in seen.case.members:
        found = [
            *group_samples(evidence, number, seen.now, None, RUN),
            *group_samples(evidence, number, seen.now, None, SLEEP),
        ]
        for one in found:
            if one.line and _place(one.line) == _place(line):
                best = max(best, (one.ns, f"{_name(seen.case, one.tid)} [{one.tid}]"))
    return best[1]


def _name(case: Case, tid: int) -> str:
    return case.evidence.thread_names.get(tid) or "thread"


def _where_call(seen: _CaseCalls, calls: _CallsAtLine) -> Where:
    """A call with its mean duration: over all calls where one line makes nearly all of them, else over the recorded."""
    alike = [other for other in seen.calls if (other.source, other.op) == (calls.source, calls.op)]
    is_main = calls.now.count >= _MIN_MAIN_LINE_RATIO * sum(other.now.count for other in alike)
    means = (_sync_means(seen.case, calls) or _exact_means(seen, calls)) if is_main else None
    mean_ns, baseline_ns = means or (calls.now.sum_ns / calls.now.count, calls.baseline.mean_ns)
    return Where(
        line=calls.line,
        call=BY_CODE[Source(calls.source), calls.op].name,
        mean_ns=round(mean_ns),
        baseline_ns=None if baseline_ns is None else round(baseline_ns),
        longest_ns=calls.now.max_ns,
        is_exact=means is not None,
    )


def _sync_means(case: Case, calls: _CallsAtLine) -> tuple[float, float | None] | None:
    """Mean duration of the sync that ends each interval, over every interval: in the case and in its baselines."""
    if case.is_of_steps or not kind_of_op(calls.source, calls.op) & Kind.SYNC or not len(case.sync_intervals):
        return None
    own = case.process.process
    baseline = [case.evidence.gpu_stream_in(window, own) for window in case.baseline_windows]
    lengths = np.concatenate(
        [np.zeros(0, np.int64), *(mine["sync_end_ns"] - mine["sync_start_ns"] for mine in baseline)]
    )
    return float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["sync_start_ns"]).mean()), float(
        lengths.mean()
    ) if len(lengths) else None


def _exact_means(seen: _CaseCalls, calls: _CallsAtLine) -> tuple[float, float | None] | None:
    """Mean duration over every call of the operation in the seconds that the time ranges touch: now and baseline."""
    evidence, process = seen.case.evidence, seen.case.process.process
    means: list[float | None] = []
    for windows in (seen.now, seen.baseline):
        spans = tuple(evidence.reader.op_spans(windows, process=process)) if windows else ()
        totals = evidence.ops(spans, process) if spans else []
        mine = next((total for total in totals if (total.source, total.op) == (calls.source, calls.op)), None)
        means.append(mine.sum_ns / mine.timed if mine and mine.timed else None)
    return (means[0], means[1]) if means[0] is not None else None


# Outside calls


def _time_outside_calls(case: Case) -> list[_OutsideCalls]:
    """The lines where the critical-path threads were outside calls while the GPU waited for them, most grown first."""
    if not len(case.sync_intervals):
        return []
    now, before, scale = case.host_sample_groups
    own, spans = case.process.process, host_spans(case.sync_intervals)
    baseline = np.concatenate(
        [case.evidence.no_sync_intervals, *(case.evidence.sync_intervals(one, own) for one in case.baseline_windows)]
    )
    slept = group_samples(case.evidence, own, (case.window,), spans, SLEEP)
    slept_before = (
        group_samples(case.evidence, own, case.baseline_windows, host_spans(baseline), SLEEP) if len(baseline) else []
    )
    sleep_scale = len(case.sync_intervals) / max(len(baseline), 1)
    found = [*_by_line(now, before, scale, "running"), *_by_line(slept, slept_before, sleep_scale, "waiting")]
    return sorted(found, key=lambda one: -one.grown_ns)


def _by_line(
    now: Iterable[SampleGroup], before: Iterable[SampleGroup], scale: float, state: str
) -> list[_OutsideCalls]:
    lines: dict[_Place, CodeLine] = {}
    sums: dict[_Place, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for found, index in ((now, 0), (before, 1)):
        for one in found:
            if one.line:
                lines.setdefault(_place(one.line), one.line)
                sums[_place(one.line)][index] += one.ns if index == 0 else scale * one.ns
                sums[_place(one.line)][2] += one.count if index == 0 else 0
    return [
        _OutsideCalls(lines[key], ns, baseline, int(count), state) for key, (ns, baseline, count) in sums.items() if ns
    ]


def _where_outside(case: Case, outside: _OutsideCalls) -> Where:
    """A line outside calls with the mean time per step there, where there are enough samples."""
    steps = max(len(case.sync_intervals), 1)
    is_enough = outside.count >= MIN_SAMPLES
    return Where(
        line=outside.line,
        state=outside.state,
        mean_ns=round(outside.now_ns / steps) if is_enough else None,
        baseline_ns=round(outside.baseline_ns / steps) if is_enough and case.baseline_windows else None,
        per=case.evidence.main_streams[case.process.process].noun if is_enough else "",
    )


# The choice between calls and time outside calls


def _where_waiting(seen: _CaseCalls, outside: Sequence[_OutsideCalls], kinds: Kind) -> Where | None:
    """Time lost in waits for the GPU: at the call of these kinds that grew most."""
    if mine := [call for call in seen.calls if call.is_any(kinds)] or seen.calls:
        return _where_call(seen, seen.most_grown(mine))
    return _where_outside(seen.case, outside[0]) if outside else None


def _where_on_host(seen: _CaseCalls, outside: Sequence[_OutsideCalls]) -> Where | None:
    """Time lost before the waits: outside calls or in calls that launch; else after the sync that came before."""
    mine = [call for call in seen.calls if not call.is_any(_WAIT_KINDS)]
    best = seen.most_grown(mine) if mine else None
    grown_ns = best.grown_ns(seen.scale) if best else 0.0
    enough = [one for one in outside if one.count >= MIN_SAMPLES]
    if enough and enough[0].grown_ns >= max(grown_ns, 1):
        return _where_outside(seen.case, enough[0])
    if best and grown_ns > 0:
        return _where_call(seen, best)
    return _where_outside(seen.case, outside[0]) if outside else _where_waiting(seen, outside, _WAIT_KINDS)


def _why_not(seen: _CaseCalls) -> str:
    case, process = seen.case, seen.case.process.process
    has_calls = any(case.evidence.reader.call_sums(one, process=process, sources=_SOURCES) for one in seen.now)
    if has_calls or (case.evidence.samples(case.time_ranges, process)["stack_hash"] != 0).any():
        return _WHY_NOT_FOUND
    if case.evidence.were_stacks_off:
        return _WHY_NOT_STACKS_OFF
    return _WHY_NOT_LIMITED if case.evidence.gaps.missing_ns((SAMPLES,), case.time_ranges) else _WHY_NOT_RECORDED
