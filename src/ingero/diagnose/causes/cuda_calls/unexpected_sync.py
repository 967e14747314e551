"""The loop waits for the GPU at more places than in the baseline, so that the host cannot run ahead of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.against_zero import host_lengths
from ingero.diagnose.cases.call_growth import kind_of
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.causes.cpu.longest_wait import worst_part
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.events import STATES
from ingero.ops import Kind
from ingero.store.records import Window
from ingero.units import format_counted, format_number

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "unexpected-sync"
_WAITING_KINDS = Kind.SYNC | Kind.COPY | Kind.FREE
_MIN_TIMES_BASELINE = 1.3  # calls of a line per launch, against the baseline


_MIN_WAITS_PER_STEP = 1.8  # one wait per step is normal
_MIN_SHARE_OF_BUSIEST_LINE = 0.5  # of the waits at the busiest line: a value read now and then is no such place
_MAX_SHARE_OF_WORK = 0.1  # of the most launches between two waits: a wait for so few ends no iteration
_MAX_HOST_RATIO = 1.0  # of the GPU's time: a host that needs more would be late without these waits, too
_FIXES = (
    Fix(text="keep the value on the GPU; read it once every N steps", command="loss.detach()  # not .item()"),
    Fix(text="copy asynchronously, from pinned memory", command="tensor.to('cuda', non_blocking=True)"),
    Fix(text="list every synchronizing operation", command="torch.cuda.set_sync_debug_mode('warn')"),
)


def explain(case: Case) -> Iterator[Finding]:
    """Time in which the host had to catch up, in a time range with more syncs per launch.

    For a bottleneck, the same time of a loop that waits at several places per step, as long as it could run ahead of
    the GPU without.
    """
    if case.resync is None:
        if case.kind is FindingKind.BOTTLENECK and (finding := _bottleneck_finding(case)):
            yield finding
        return
    claims = case.claimable((Part.IDLE, Part.LAUNCH), ("run",))
    if case.is_of_steps:  # GPU idle time within steps is unknown: all of the longer waits for the GPU count
        claims |= case.claimable((Part.GPU,), (GPU_EXECUTION,))
    if not claims:
        return
    lost, times = sum(claims.values()), case.resync.syncs
    lines = _new_lines(case)
    line = next(iter(lines), None)
    where = f", at {' and '.join(str(one) for one in lines[:2])}" if lines else ""
    yield Finding(
        cause=CAUSE,
        resource="synchronization",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} to GPU syncs: {times:.1f}x as many per kernel launch as in the "
        f"baseline{where}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"the loop synchronized its stream {times:.1f}x as often per launch",
                seen_ns=lost,
                expected_ns=0,
                structure="after each sync the GPU stays idle until the host has launched new work",
                order="the sync returned, then the host ran, then came the next launch",
            ),
        ),
        fixes=_FIXES,
        evidence={"syncs per launch against the baseline": round(times, 2), "new places": len(lines)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excess:
    """Waits beyond the one that a step needs. waits: of a step. lines: most waits first. ns: lost to them."""

    waits: float
    lines: Sequence[CodeLine]
    parts: tuple[Part, ...]
    ns: float


def _bottleneck_finding(case: Case) -> Finding | None:
    """A loop that always synced that often: GPU idle time after all but one of a step's waits."""
    if case.is_of_steps or not case.knows_idle or not len(case.sync_intervals):
        return None
    host_ns = _host_ns(case)
    if host_ns > _MAX_HOST_RATIO * float(case.sync_intervals["busy_ns"].sum()):
        return None
    excess = _recurring_waits(case) or _waits_at_several_lines(case)
    least_ns = BOTTLENECK_RATIO * case.wall_ns
    if excess is None or excess.ns < least_ns:
        return None
    claims = case.claimable(excess.parts, ("run",), excess.ns)
    lost, lines, waits = sum(claims.values()), excess.lines, excess.waits
    if lost < least_ns:
        return None
    places = " and ".join(str(line) for line in lines[:2]) + (f" and {len(lines) - 2} more" if len(lines) > 2 else "")
    return Finding(
        cause=CAUSE,
        resource="synchronization",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} to {format_number(waits, 2)} GPU syncs per step, at {places}: "
        f"after each, the GPU is idle until the host has launched new work",
        claims=claims,
        is_outside_loop=True,
        line=lines[0],
        chain=(
            Link(
                text=f"the loop syncs its stream {format_number(waits, 2)} times per step, "
                f"at {format_counted(len(lines), 'line')}",
                seen_ns=lost,
                expected_ns=0,
                structure="recorded waits by line, and the time in which nothing was queued after them",
                order="the sync returned, then the host ran, then came the next launch",
            ),
        ),
        fixes=_FIXES,
        evidence={"waits a step": round(waits, 2), "places": len(lines)},
    )


# Waits that recur within a step


def _recurring_waits(case: Case) -> _Excess | None:
    """Waits for a few launches each, many times in a step by repetition (`.item()` of each gradient); None without.

    Intervals that recur with as much work as any other are iterations, of which a step by repetition may have several.
    Judged by the worst part of the case, in which no interval is left out.
    """
    window = worst_part(case)
    sync_intervals = case.evidence.gpu_stream_in(window, case.process.process)
    step = _steps_of(case, sync_intervals["sync_end_ns"])
    sync_intervals, step = sync_intervals[step >= 0], step[step >= 0]
    if not len(step):
        return None
    steps = len(np.unique(step))
    _, place, counts = np.unique(sync_intervals["step_type"], return_inverse=True, return_counts=True)
    launches = np.bincount(place, weights=sync_intervals["launches"]) / counts
    recurs = ((counts >= _MIN_WAITS_PER_STEP * steps) & (launches <= _MAX_SHARE_OF_WORK * launches.max()))[place]
    waits = len(sync_intervals) / steps
    if not recurs.any() or waits < _MIN_WAITS_PER_STEP:
        return None
    lines = _lines_of(case, window, sync_intervals["sync_end_ns"][recurs])
    if not lines:
        return None
    seen_ns = float((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum())
    saved_ns = _saved_ns(sync_intervals, step, recurs) * case.wall_ns / max(seen_ns, 1.0)
    return _Excess(waits=waits, lines=lines, parts=(Part.IDLE, Part.LAUNCH), ns=saved_ns)


def _steps_of(case: Case, times_ns: Array) -> Array:
    """The number of the step by repetition in which each time lies, -1: none. times_ns: in order."""
    mine = [one.sync_intervals for one in case.evidence.repeated_steps if one.process == case.process.process]
    if not mine:
        return np.full(len(times_ns), -1)
    begins_ns, ends_ns = (np.ascontiguousarray(mine[0][name]) for name in ("prev_sync_end_ns", "sync_end_ns"))
    at = np.searchsorted(ends_ns, times_ns)
    found: Array = np.where(at < len(ends_ns), at, -1)
    found[(found >= 0) & (begins_ns[np.minimum(at, len(begins_ns) - 1)] >= times_ns)] = -1
    return found


def _saved_ns(sync_intervals: Array, step: Array, recurs: Array) -> float:
    """The time in which the GPU was idle, or launches came too slowly, because of all but one of a step's waits.

    Without a wait the host would have been ahead by its duration, until it had spent that lead on work of its own. The
    wait that a step needs is the costliest of those that do not recur in it, if it has one.
    """
    following = _followed(sync_intervals)
    waits, lengths = sync_intervals[following], host_lengths(sync_intervals)
    if not len(waits):
        return 0.0
    short_ns = (lengths[Part.IDLE] + lengths[Part.LAUNCH])[following + 1]
    lead_ns = np.cumsum(waits["sync_end_ns"] - waits["sync_start_ns"] - short_ns)
    order = np.lexsort((short_ns, ~recurs[following], step[following]))
    needed = np.sort(order[np.append(np.flatnonzero(np.diff(step[following][order])), len(order) - 1)])
    saved_ns = 0.0
    for first, last in zip(needed[:-1] + 1, needed[1:], strict=True):
        if first < last:
            spent_ns = float((lead_ns[first:last] - lead_ns[first - 1]).min())
            saved_ns += float(short_ns[first:last].sum()) + min(spent_ns, 0.0)
    return saved_ns


def _lines_of(case: Case, window: Window, ends_ns: Array) -> list[CodeLine]:
    """The lines with most of the recorded waits that ended then, most first."""
    stacks = case.evidence.reader.sync_stacks(window, process=case.process.process)
    case.evidence.stacks.read(set(stacks.values()))
    mine = set(ends_ns.tolist())
    lines = (case.evidence.own_line(number) for end_ns, number in stacks.items() if end_ns in mine)
    counts = Counter(line for line in lines if line)
    return _busiest(counts)


def _busiest(counts: Counter[CodeLine]) -> list[CodeLine]:
    most = max(counts.values(), default=0)
    return [line for line, count in counts.most_common() if count >= _MIN_SHARE_OF_BUSIEST_LINE * most]


# Waits at several lines


def _waits_at_several_lines(case: Case) -> _Excess | None:
    """Waits at several lines, equally often: each once in a step; None at one line, where the step itself waits."""
    counts = _waits_by_line(case, case.time_ranges)
    lines = _busiest(counts)
    waits = sum(counts[line] for line in lines) / max(counts.values(), default=1)
    if len(lines) < 2 or waits < _MIN_WAITS_PER_STEP:
        return None
    if case.total((Part.IDLE,), ("run",)) * (1 - 1 / len(lines)) < BOTTLENECK_RATIO * case.wall_ns:  # an upper bound
        return None
    return _Excess(waits=waits, lines=lines, parts=(Part.IDLE,), ns=_idle_after_all_but_one_ns(case, lines))


def _idle_after_all_but_one_ns(case: Case, lines: Sequence[CodeLine]) -> float:
    """GPU idle time because of all but one of these waits, scaled to the case.

    Without a wait the host would have been earlier by the duration of the wait: no more of the idle time after it is
    due to it. One wait per step is allowed, the costliest one.
    """
    sync_intervals, window = case.sync_intervals, worst_part(case)
    following = _followed(sync_intervals)
    waited = sync_intervals["sync_end_ns"] - sync_intervals["sync_start_ns"]
    spared = np.minimum(waited[following], sync_intervals["idle_ns"][following + 1])
    stacks = case.evidence.reader.sync_stacks(window, process=case.process.process)
    case.evidence.stacks.read(set(stacks.values()))
    ns_by_line: defaultdict[CodeLine, list[int]] = defaultdict(list)
    for end_ns, spared_ns in zip(sync_intervals["sync_end_ns"][following].tolist(), spared.tolist(), strict=True):
        line = case.evidence.own_line(stacks[end_ns]) if end_ns in stacks else None
        if line and line in lines:
            ns_by_line[line].append(spared_ns)
    idle_ns_by_line = sorted(sum(idle_times) for idle_times in ns_by_line.values())
    known = sum(map(len, ns_by_line.values()))
    return sum(idle_ns_by_line[:-1]) * len(sync_intervals) / max(known, 1) * case.scale


def _followed(sync_intervals: Array) -> Array:
    """Indexes of the sync intervals that another one follows at once."""
    found: Array = np.flatnonzero(sync_intervals["prev_sync_end_ns"][1:] == sync_intervals["sync_end_ns"][:-1])
    return found


def _host_ns(case: Case) -> float:
    """Time that the host ran in idle and launch parts; as long as it is below the GPU's time, it could run ahead."""
    run = STATES.index("run")
    return float(
        sum(np.maximum(case.sync_intervals[f"{part}_state_ns"][:, run], 0).sum() for part in ("idle", "launch"))
    )


def _new_lines(case: Case) -> list[CodeLine]:
    """Lines that wait for the GPU more often than in the baseline, largest growth first."""
    baseline = _waits_by_line(case, case.baseline_windows)
    process = case.process.process
    launches = sum(
        int(case.evidence.gpu_stream_in(window, process)["launches"].sum()) for window in case.baseline_windows
    )
    scale = float(case.sync_intervals["launches"].sum()) / max(launches, 1)
    grown = {
        line: count - scale * baseline[line]
        for line, count in _waits_by_line(case, [case.window]).items()
        if count > _MIN_TIMES_BASELINE * scale * baseline[line]
    }
    return sorted(grown, key=lambda line: -grown[line])


def _waits_by_line(case: Case, windows: Iterable[Window]) -> Counter[CodeLine]:
    """Recorded calls that may wait for the GPU, by the program's own line."""
    process = case.process.process
    waits = {(change.totals.source, change.totals.op) for change in case.op_changes if kind_of(change) & _WAITING_KINDS}
    counts: Counter[CodeLine] = Counter()
    for window in windows:
        times = case.evidence.reader.stack_times(
            window, process=process, sources=tuple({source for source, _ in waits})
        )
        wait_rows = [row for row in times if (row.source, row.op) in waits]
        case.evidence.stacks.read(row.stack_hash for row in wait_rows)
        for row in wait_rows:
            if line := case.evidence.own_line(row.stack_hash):
                counts[line] += row.count
    return counts


RULE = Rule(
    cause=CAUSE,
    title="unexpected GPU syncs in the loop",
    order=46,
    needs=("sync_intervals", "op_stats", "launches"),
    shows="syncs per launch against a time range of the same loop with fewer, the time in which the GPU was idle "
    "after them, and the lines that are new",
    limits="a loop that has synced that often from the first second on is detected by syncs at several of its lines, "
    "equally often, or by several per step found by repetition, where the host needs less time than the GPU; without "
    "stacks nothing is reported",
    explain=explain,
)
