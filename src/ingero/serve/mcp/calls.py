"""The cost of calls and their stacks, for an assistant."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ingero.events import STATES
from ingero.identity import waiting_mark
from ingero.ops import Source
from ingero.serve.mcp.untrusted import traced
from ingero.units import format_count, format_ns, format_percent

if TYPE_CHECKING:
    from ingero.store.call_stacks import CallStack, StackBook
    from ingero.store.reader import Reader
    from ingero.store.records import OpTotals, Process, Snapshot, StackTime, Window
    from ingero.store.waiters import PlacedTime, Waiter

MAX_OPS = 40  # an assistant reads no more; the rest is counted
_MAX_FRAMES = 24  # of each kind in a stack
_FRAMES = {"native": "native", "python": "Python", "waiting_python": "Python of the thread that waits for it"}
_SYSTEM = ("cpu_percent", "mem_percent", "load_avg")
CALL_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)


def trace_stats(reader: Reader, window: Window, pid: int | None, skip: int = 0) -> dict[str, Any]:
    """Operations, highest total first, without the first `skip`; the host beside them, and dropped data.

    Operations that only nested in others have no calls of their own, and are left out.
    """
    names = {process.process: process for process in reader.processes(only_traced=False)}
    totals = [total for total in reader.op_totals(window) if total.count and pid in (None, total.pid)][skip:]
    recorded_ns = reader.recorded_ns(window)
    node_of = nodes_of_sessions(reader)
    return {
        "is_exact": reader.has_exact_totals,
        "ops": [_op(total, names.get(total.process), recorded_ns, node_of) for total in totals[:MAX_OPS]],
        "more_ops": len(totals[MAX_OPS:]),
        "system": _system(reader.snapshots(window)),
        "drops": _drops(reader, window),
        "note": "" if reader.has_exact_totals else "Counts and sums are of the stored calls only.",
    }


def nodes_of_sessions(reader: Reader) -> dict[int, str]:
    """The node of each session of a recording of several nodes; of one, nothing."""
    sessions = reader.sessions()
    return (
        {session.session: session.node for session in sessions}
        if len({session.node for session in sessions}) > 1
        else {}
    )


def stats_text(stats: dict[str, Any], skipped: int = 0) -> str:
    """A line per operation. skipped: how many were left out at the begin."""
    lines = [
        f"{one['op']} (pid {one['pid']}{_on(one)}): "
        f"{format_count(one['count'])} calls, {format_ns(one['sum_ns'])} in all "
        f"({format_percent(one['wall_ratio'])} of wall time), p99 {_ns(one['p99_ns'])}, longest {_ns(one['max_ns'])}"
        for one in stats["ops"]
    ]
    more = []
    if stats["more_ops"]:
        more = [f"and {stats['more_ops']} operations more: ask again with skip={skipped + len(stats['ops'])}"]
    dropped = [f"dropped: {one['counter']} {one['count']} {one['reason']}".rstrip() for one in stats["drops"]]
    return "\n".join([*(lines or ["No call was recorded."]), *more, *dropped, stats["note"]]).rstrip()


def stack_times(reader: Reader, window: Window) -> tuple[list[PlacedTime], list[str]]:
    """Recorded calls by process, operation, stack and who waited for them, highest total first, without those that
    have no stack; beside them, notes."""
    from ingero.store.call_stacks import StackBook  # noqa: PLC0415  # numpy; see source.py
    from ingero.store.waiters import Waiters  # noqa: PLC0415  # as above

    book, found, notes = StackBook(reader), [], []
    for process in reader.processes():
        times = reader.stack_times(window, process=process.process, sources=CALL_SOURCES)
        placed, note = Waiters(reader, window, process=process.process).placed(times, book)
        found += [placed_time for placed_time in placed if placed_time.time.stack_hash]
        notes += [f"pid {process.pid}: {note}"] if note else []
    return sorted(found, key=lambda one: -one.time.sum_ns), notes


def chosen(
    times: Iterable[PlacedTime], *, processes: Container[int] | None, source: int | None, op: tuple[int, int] | None
) -> list[PlacedTime]:
    """The stack times of these processes, this library and this operation; None: any."""
    return [
        stack_time
        for stack_time in times
        if (processes is None or stack_time.time.process in processes)
        and source in (None, stack_time.time.source)
        and op in (None, (stack_time.time.source, stack_time.time.op))
    ]


def stack_rows(reader: Reader, times: Sequence[PlacedTime]) -> list[dict[str, Any]]:
    """Stack times with their frames, innermost first."""
    from ingero.store.call_stacks import StackBook  # noqa: PLC0415  # numpy; see source.py

    book = StackBook(reader)
    book.read(stack_time.time.stack_hash for stack_time in times)
    book.read(stack_time.waiter.stack_hash for stack_time in times if stack_time.waiter)
    processes = {process.process: process for process in reader.processes(only_traced=False)}
    pids = {number: one.pid for number, one in processes.items()}
    node_of = nodes_of_sessions(reader)
    return [
        _stack(stack_time.time, pids.get(stack_time.time.process, 0), book.of(stack_time.time.stack_hash))
        | _waiting(stack_time.waiter, book)
        | _node(processes.get(stack_time.time.process), node_of)
        for stack_time in times
    ]


def stacks_text(rows: Iterable[dict[str, Any]]) -> str:
    """A line per stack, and below it its frames, innermost first: some clients show an assistant the text alone."""
    lines = [line for row in rows for line in _stack_lines(row)]
    return "\n".join(lines) or "No stored call of this kind has a stack."


def _stack_lines(one: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{one['op']} (pid {one['pid']}{_on(one)}): "
        f"{format_count(one['count'])} stored calls, {format_ns(one['sum_ns'])}, "
        f"from {one['line'] or one['waiting_line'] or 'no known line'}"
    )
    for kind, title in _FRAMES.items():
        if one[kind]:
            yield f"  {title}: {' < '.join(one[kind])}"


def _node(process: Process | None, node_of: dict[int, str]) -> dict[str, Any]:
    return {"node": traced(node_of.get(process.session, ""))} if process and node_of else {}


def _on(row: dict[str, Any]) -> str:
    return f" on {row['node']}" if row.get("node") else ""


def _op(totals: OpTotals, process: Process | None, recorded_ns: int, node_of: dict[int, str]) -> dict[str, Any]:
    clocks = {name: int(getattr(totals.clocks, f"{name}_ns")) for name in STATES} if totals.clocks else {}
    return _node(process, node_of) | {
        "op": totals.name,
        "pid": totals.pid,
        "process_name": traced(process.name if process else ""),
        "count": totals.count,
        "errors": totals.errors,
        "sum_ns": totals.sum_ns,
        "max_ns": totals.max_ns,
        "p50_ns": totals.p50_ns,
        "p95_ns": totals.p95_ns,
        "p99_ns": totals.p99_ns,
        "wall_ratio": totals.sum_ns / recorded_ns,
        "bytes": totals.bytes,
        "clocks": {name: ns for name, ns in clocks.items() if ns},
    }


def _system(snapshots: Sequence[Snapshot]) -> dict[str, float]:
    """Averages over the window of what was recorded."""
    found: dict[str, float] = {}
    for name in _SYSTEM:
        values = [value for snapshot in snapshots if (value := getattr(snapshot, name)) is not None]
        if values:
            found[f"average {name}"] = fmean(values)
    return found


def _drops(reader: Reader, window: Window) -> list[dict[str, Any]]:
    if not reader.is_recorded("raw_drops"):
        return []
    return [
        {"counter": drop.counter, "reason": traced(drop.reason), "count": drop.count} for drop in reader.drops(window)
    ]


def _stack(stack_time: StackTime, pid: int, stack: CallStack | None) -> dict[str, Any]:
    own = stack.own if stack else None
    return {
        "op": stack_time.name,
        "pid": pid,
        "count": stack_time.count,
        "sum_ns": stack_time.sum_ns,
        "avg_ns": stack_time.sum_ns // max(stack_time.count, 1),
        "line": traced(own.full) if own else "",
        "python": [traced(place.full) for place in stack.python[:_MAX_FRAMES]] if stack else [],
        "native": [traced(place.text) for place in stack.native[:_MAX_FRAMES]] if stack else [],
        "note": traced(stack.note) if stack else "the stack is no longer stored",
    }


def _waiting(waiter: Waiter | None, book: StackBook) -> dict[str, Any]:
    stack = book.of(waiter.stack_hash) if waiter else None
    if waiter is None or stack is None or stack.own is None:
        return {"waiting_thread": "", "waiting_line": "", "waiting_python": []}
    return {
        "waiting_thread": waiter.thread,
        "waiting_line": f"{traced(stack.own.full)} {waiting_mark(waiter.thread)}",
        "waiting_python": [traced(place.full) for place in stack.python[:_MAX_FRAMES]],
    }


def _ns(value: float | None) -> str:
    return "unknown" if value is None else format_ns(value)
