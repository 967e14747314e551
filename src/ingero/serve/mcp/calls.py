"""What the calls cost and where they came from, as an assistant is told."""

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
    names = {one.process: one for one in reader.processes(only_traced=False)}
    totals = [one for one in reader.op_totals(window) if one.count and pid in (None, one.pid)][skip:]
    recorded_ns = reader.recorded_ns(window)
    node_of = nodes_of_sessions(reader)
    return {
        "is_exact": reader.has_exact_totals,
        "ops": [_op(one, names.get(one.process), recorded_ns, node_of) for one in totals[:MAX_OPS]],
        "more_ops": len(totals[MAX_OPS:]),
        "system": _system(reader.snapshots(window)),
        "drops": _drops(reader, window),
        "note": "" if reader.has_exact_totals else "Counts and sums are of the stored calls only.",
    }


def nodes_of_sessions(reader: Reader) -> dict[int, str]:
    """The node of each session of a recording of several nodes; of one, nothing."""
    sessions = reader.sessions()
    return {one.session: one.node for one in sessions} if len({one.node for one in sessions}) > 1 else {}


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
        found += [one for one in placed if one.time.stack_hash]
        notes += [f"pid {process.pid}: {note}"] if note else []
    return sorted(found, key=lambda one: -one.time.sum_ns), notes


def chosen(
    times: Iterable[PlacedTime], *, processes: Container[int] | None, source: int | None, op: tuple[int, int] | None
) -> list[PlacedTime]:
    """Those of these processes, this library, this operation; None: of any."""
    return [
        one
        for one in times
        if (processes is None or one.time.process in processes)
        and source in (None, one.time.source)
        and op in (None, (one.time.source, one.time.op))
    ]


def stack_rows(reader: Reader, times: Sequence[PlacedTime]) -> list[dict[str, Any]]:
    """The same with their frames, innermost first."""
    from ingero.store.call_stacks import StackBook  # noqa: PLC0415  # numpy; see source.py

    book = StackBook(reader)
    book.read(one.time.stack_hash for one in times)
    book.read(one.waiter.stack_hash for one in times if one.waiter)
    processes = {one.process: one for one in reader.processes(only_traced=False)}
    pids = {number: one.pid for number, one in processes.items()}
    node_of = nodes_of_sessions(reader)
    return [
        _stack(one.time, pids.get(one.time.process, 0), book.of(one.time.stack_hash))
        | _waiting(one.waiter, book)
        | _node(processes.get(one.time.process), node_of)
        for one in times
    ]


def stacks_text(rows: Iterable[dict[str, Any]]) -> str:
    """A line per stack, and below it its frames, innermost first: some clients show an assistant the text alone."""
    lines = [line for one in rows for line in _stack_lines(one)]
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


def _op(one: OpTotals, process: Process | None, recorded_ns: int, node_of: dict[int, str]) -> dict[str, Any]:
    clocks = {name: int(getattr(one.clocks, f"{name}_ns")) for name in STATES} if one.clocks else {}
    return _node(process, node_of) | {
        "op": one.name,
        "pid": one.pid,
        "process_name": traced(process.name if process else ""),
        "count": one.count,
        "errors": one.errors,
        "sum_ns": one.sum_ns,
        "max_ns": one.max_ns,
        "p50_ns": one.p50_ns,
        "p95_ns": one.p95_ns,
        "p99_ns": one.p99_ns,
        "wall_ratio": one.sum_ns / recorded_ns,
        "bytes": one.bytes,
        "clocks": {name: ns for name, ns in clocks.items() if ns},
    }


def _system(snapshots: Sequence[Snapshot]) -> dict[str, float]:
    """Averages over the window of what was recorded."""
    found: dict[str, float] = {}
    for name in _SYSTEM:
        values = [value for one in snapshots if (value := getattr(one, name)) is not None]
        if values:
            found[f"average {name}"] = fmean(values)
    return found


def _drops(reader: Reader, window: Window) -> list[dict[str, Any]]:
    if not reader.is_recorded("raw_drops"):
        return []
    return [{"counter": one.counter, "reason": traced(one.reason), "count": one.count} for one in reader.drops(window)]


def _stack(one: StackTime, pid: int, stack: CallStack | None) -> dict[str, Any]:
    own = stack.own if stack else None
    return {
        "op": one.name,
        "pid": pid,
        "count": one.count,
        "sum_ns": one.sum_ns,
        "avg_ns": one.sum_ns // max(one.count, 1),
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
