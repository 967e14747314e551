"""One block per process: its calls with percentiles, its involuntary off-CPU time, and what ran meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.diagnose.incidents.incident_json import Object
from ingero.store.reader import Reader
from ingero.store.records import CulpritTotals, OffCpu, OpTotals, Process, ThreadStateTotals, Window
from ingero.units import format_count, format_ns, format_percent

_TOP_OPS = 12
_TOP_CPU_USERS = 12


@dataclass(frozen=True, slots=True)
class _CpuUser:
    """A process that is not traced, with the CPU time that traced ones waited for while it ran."""

    pid: int
    name: str
    stolen_ns: int
    switches: int


def per_process_lines(reader: Reader, window: Window, *, pid: int | None = None) -> Iterator[str]:
    """Traced processes first, data workers by name among them, then processes that ran while these waited for a CPU."""
    processes = [process for process in reader.processes() if pid is None or process.pid == pid]
    clocks = {totals.process: totals for totals in reader.thread_state_totals(window)}
    totals: dict[int, list[OpTotals]] = defaultdict(list)
    for total in reader.op_totals(window):
        totals[total.process].append(total)
    seen = [process for process in processes if process.process in clocks or process.process in totals]
    traced = {one.pid for one in seen}
    recorded_ns = reader.recorded_ns(window)
    yield "Per process:"
    for one in seen:
        worst = _worst_stall(reader, window, one)
        yield from _process(one, traced, clocks.get(one.process), totals[one.process], worst, recorded_ns)
    for cpu_user in _cpu_users(reader.culprits(window), {one.process for one in seen}, traced)[:_TOP_CPU_USERS]:
        stolen = format_ns(cpu_user.stolen_ns)
        switches = f"{format_count(cpu_user.switches)} context switches"
        yield f"  {cpu_user.name} [{cpu_user.pid}]: CPU time used meanwhile {stolen}, {switches}"
    yield ""


def _process(
    process: Process,
    traced: set[int],
    clocks: ThreadStateTotals | None,
    totals: Sequence[OpTotals],
    worst: OffCpu | None,
    recorded_ns: int,
) -> Iterator[str]:
    role = f", worker of {process.parent_pid}" if process.parent_pid in traced else ""
    rank = f", rank {process.rank}" if process.rank is not None else ""
    yield f"  {process.name} [{process.pid}]{rank}{role}"
    if clocks:
        yield f"    {_off_cpu(clocks, recorded_ns)}"
    if worst:
        place = f" on CPU {worst.cpu}" if worst.cpu is not None else ""
        culprit = f", {worst.culprit_name} [{worst.culprit_pid}] ran" if worst.culprit_pid else ""
        stall = format_ns(worst.waited_ns)
        yield f"    worst stall {stall} of {worst.comm} [{worst.tid}]{place}{culprit}"
    shown = [total for total in totals if total.count][:_TOP_OPS]
    if shown:
        yield f"    {'call':30}{'calls':>12}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}"
    for total in shown:
        quantiles = (_optional(value) for value in (total.p50_ns, total.p95_ns, total.p99_ns))
        p50, p95, p99 = (f"{text:>10}" for text in quantiles)
        yield f"    {total.name:30}{format_count(total.count):>12}{p50}{p95}{p99}{format_ns(total.max_ns):>10}"


def _off_cpu(total: ThreadStateTotals, recorded_ns: int) -> str:
    """Involuntary off-CPU time: runnable or throttled, summed over threads, and its share of recorded time."""
    lost = _involuntary_total_ns(total)
    share = format_percent(lost / recorded_ns)
    return (
        f"involuntary off-CPU time {format_ns(lost)} of {format_ns(recorded_ns)} ({share}, up to {total.threads} "
        f"threads summed), {format_count(total.switches)} context switches, "
        f"{format_count(total.involuntary_switches)} of them involuntary"
    )


def _worst_stall(reader: Reader, window: Window, process: Process) -> OffCpu | None:
    """The longest single wait to run."""
    return reader.longest_wait(window, process.process) if reader.is_recorded("raw_offcpu") else None


def _cpu_users(culprits: Sequence[CulpritTotals], affected: set[int], traced: set[int]) -> list[_CpuUser]:
    """Processes that are not traced, by the CPU time that traced ones waited for, most first."""
    spent: dict[tuple[int, str], int] = defaultdict(int)
    switches: dict[tuple[int, str], int] = defaultdict(int)
    for culprit in culprits:
        if culprit.process in affected and culprit.culprit_pid > 0 and culprit.culprit_pid not in traced:
            key = (culprit.culprit_pid, culprit.culprit_name)
            spent[key] += culprit.ns
            switches[key] += culprit.switches
    found = [_CpuUser(pid, name, ns, switches[pid, name]) for (pid, name), ns in spent.items()]
    return sorted(found, key=lambda one: -one.stolen_ns)


def _optional(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)


def per_process_json(reader: Reader, window: Window, *, pid: int | None = None) -> list[Object]:
    """The traced processes as JSON."""
    clocks = {totals.process: totals for totals in reader.thread_state_totals(window)}
    totals: dict[int, list[OpTotals]] = defaultdict(list)
    for total in reader.op_totals(window):
        totals[total.process].append(total)
    seen = [process for process in reader.processes() if process.process in clocks or process.process in totals]
    traced = {one.pid for one in seen}
    recorded_ns = reader.recorded_ns(window)
    return [
        _process_json(one, clocks.get(one.process), totals[one.process], recorded_ns)
        | {
            "is_worker": one.parent_pid in traced,
            "worst_stall": _stall_json(_worst_stall(reader, window, one)),
        }
        for one in seen
        if pid is None or one.pid == pid
    ]


def cpu_users_json(reader: Reader, window: Window, *, pid: int | None = None) -> list[Object]:
    """Processes that are not traced, with the CPU time that traced ones (or one) waited for, as JSON."""
    seen = [process for process in reader.processes() if pid is None or process.pid == pid]
    traced = {process.pid for process in reader.processes()}
    cpu_users = _cpu_users(reader.culprits(window), {one.process for one in seen}, traced)
    return [
        {"pid": one.pid, "name": one.name, "stolen_ns": one.stolen_ns, "switches": one.switches} for one in cpu_users
    ]


def _stall_json(worst: OffCpu | None) -> Object | None:
    if worst is None:
        return None
    return {
        "start_ns": worst.start_ns,
        "duration_ns": worst.waited_ns,
        "tid": worst.tid,
        "comm": worst.comm,
        "cpu": worst.cpu,
        "culprit_pid": worst.culprit_pid,
        "culprit_name": worst.culprit_name,
    }


def _process_json(
    process: Process, clocks: ThreadStateTotals | None, totals: Sequence[OpTotals], recorded_ns: int
) -> Object:
    lost = _involuntary_total_ns(clocks) if clocks else None
    return {
        "pid": process.pid,
        "name": process.name,
        "parent_pid": process.parent_pid,
        "rank": process.rank,
        "involuntary_ns": lost,
        "involuntary_ratio": None if lost is None else lost / recorded_ns,
        "threads": clocks.threads if clocks else None,
        "switches": clocks.switches if clocks else None,
        "involuntary_switches": clocks.involuntary_switches if clocks else None,
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


def _involuntary_total_ns(total: ThreadStateTotals) -> int:
    return total.clocks.runq_ns + total.clocks.throttled_ns + total.clocks.yielded_ns
