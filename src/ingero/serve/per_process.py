"""One block per process: its calls with percentiles, what kept it off the CPU, and what others took from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ingero.diagnose.incident_json import Object
from ingero.store.reader import Reader
from ingero.store.records import ClockTotals, CulpritTotals, OffCpu, OpTotals, Process, Window
from ingero.units import format_count, format_ns, format_percent

_TOP_OPS = 12
_WORST_LOOKED_AT = 200  # intervals per process, among which its worst involuntary stall is looked for


def per_process_lines(reader: Reader, window: Window, *, pid: int | None = None) -> Iterator[str]:
    """Traced processes first, data workers by name among them, then everybody who took CPU time from them."""
    processes = [one for one in reader.processes() if pid is None or one.pid == pid]
    clocks = {one.process: one for one in reader.clock_totals(window)}
    totals: dict[int, list[OpTotals]] = defaultdict(list)
    for total in reader.op_totals(window):
        totals[total.process].append(total)
    seen = [one for one in processes if one.process in clocks or one.process in totals]
    traced = {one.pid for one in seen}
    yield "Per process:"
    for one in seen:
        worst = _worst_stall(reader, window, one)
        yield from _process(one, traced, clocks.get(one.process), totals[one.process], worst, window)
    yield from _takers(reader.culprits(window), {one.process for one in seen}, traced)
    yield ""


def _process(
    one: Process,
    traced: set[int],
    clocks: ClockTotals | None,
    totals: Sequence[OpTotals],
    worst: OffCpu | None,
    window: Window,
) -> Iterator[str]:
    role = f", worker of {one.parent_pid}" if one.parent_pid in traced else ""
    rank = f", rank {one.rank}" if one.rank is not None else ""
    yield f"  {one.name} [{one.pid}]{rank}{role}"
    if clocks:
        yield f"    {_off_cpu(clocks, window)}"
    if worst:
        culprit = f", {worst.culprit_name} [{worst.culprit_pid}] ran" if worst.culprit_pid else ""
        yield f"    worst stall {format_ns(_involuntary_ns(worst))} by {worst.comm} [{worst.tid}]{culprit}"
    shown = [total for total in totals if total.count][:_TOP_OPS]
    if shown:
        yield f"    {'call':30}{'calls':>12}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}"
    for total in shown:
        quantiles = (_optional(value) for value in (total.p50_ns, total.p95_ns, total.p99_ns))
        p50, p95, p99 = (f"{text:>10}" for text in quantiles)
        yield f"    {total.name:30}{format_count(total.count):>12}{p50}{p95}{p99}{format_ns(total.max_ns):>10}"


def _off_cpu(total: ClockTotals, window: Window) -> str:
    """Involuntary: could have run, or was throttled. The share is of wall time, threads summed."""
    lost = _involuntary_total_ns(total)
    share = format_percent(lost / max(window.duration_ns, 1))
    return (
        f"off the CPU against its will {format_ns(lost)} of {format_ns(window.duration_ns)} ({share}, up to "
        f"{total.threads} threads summed), {format_count(total.switches)} context switches, "
        f"{format_count(total.preemptions)} preemptions"
    )


def _worst_stall(reader: Reader, window: Window, one: Process) -> OffCpu | None:
    """The longest single wait to run among its longest intervals off the CPU."""
    if not reader.is_recorded("raw_offcpu"):
        return None
    intervals = reader.offcpu(window, process=one.process, limit=_WORST_LOOKED_AT)
    known = [interval for interval in intervals if interval.state is not None and _involuntary_ns(interval) > 0]
    return max(known, key=_involuntary_ns, default=None)


def _involuntary_ns(interval: OffCpu) -> int:
    """All of an interval that was no sleep; of a sleep what followed the wake-up."""
    if interval.state in ("runq", "throttled", "yielded"):
        return interval.duration_ns
    return max(0, interval.start_ns + interval.duration_ns - interval.woken_ns) if interval.woken_ns else 0


def _takers(culprits: Sequence[CulpritTotals], victims: set[int], traced: set[int]) -> Iterator[str]:
    """Processes that are not traced, by the CPU time that traced ones waited for."""
    spent: dict[tuple[int, str], int] = defaultdict(int)
    switches: dict[tuple[int, str], int] = defaultdict(int)
    for one in culprits:
        if one.process in victims and one.culprit_pid > 0 and one.culprit_pid not in traced:
            key = (one.culprit_pid, one.culprit_name)
            spent[key] += one.ns
            switches[key] += one.switches
    for (pid, name), ns in sorted(spent.items(), key=lambda item: -item[1])[:_TOP_OPS]:
        yield f"  {name} [{pid}]: CPU stolen {format_ns(ns)}, {format_count(switches[pid, name])} switches"


def _optional(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)


def per_process_json(reader: Reader, window: Window, *, pid: int | None = None) -> list[Object]:
    """The same as JSON."""
    clocks = {one.process: one for one in reader.clock_totals(window)}
    totals: dict[int, list[OpTotals]] = defaultdict(list)
    for total in reader.op_totals(window):
        totals[total.process].append(total)
    return [
        _process_json(one, clocks.get(one.process), totals[one.process])
        for one in reader.processes()
        if (pid is None or one.pid == pid) and (one.process in clocks or one.process in totals)
    ]


def _process_json(one: Process, clocks: ClockTotals | None, totals: Sequence[OpTotals]) -> Object:
    return {
        "pid": one.pid,
        "name": one.name,
        "parent_pid": one.parent_pid,
        "rank": one.rank,
        "involuntary_ns": _involuntary_total_ns(clocks) if clocks else None,
        "switches": clocks.switches if clocks else None,
        "preemptions": clocks.preemptions if clocks else None,
        "ops": [
            {
                "name": total.name,
                "count": total.count,
                "sum_ns": total.sum_ns,
                "p50_ns": total.p50_ns,
                "p95_ns": total.p95_ns,
                "p99_ns": total.p99_ns,
                "max_ns": total.max_ns,
            }
            for total in totals
            if total.count
        ],
    }


def _involuntary_total_ns(total: ClockTotals) -> int:
    return total.clocks.runq_ns + total.clocks.throttled_ns + total.clocks.yielded_ns
