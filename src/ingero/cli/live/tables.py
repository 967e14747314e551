"""The tables of the live view: traced calls, processes, host events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ingero.capture.sums.host_sums import HostSum
from ingero.cli.live.lines import Line, Span, clean, fitted
from ingero.cli.live.sections import Section, flow_section, lines_section, long_section, table_section
from ingero.cli.live.state import LiveState, OpLine, ProcessLine
from ingero.ops import HostOp, IoOp, Kind, NetOp, Source, TcpOp
from ingero.store.vocabulary import op_rows
from ingero.units import format_bytes, format_count, format_ns, format_percent

CALL_TABLES: tuple[tuple[str, Source], ...] = (
    ("RUNTIME API", Source.CUDA),
    ("DRIVER API", Source.DRIVER),
    ("GRAPHS", Source.CUDA_GRAPH),
    ("NCCL", Source.NCCL),
)
_MAX_FROM, _TOTAL_FROM = 90, 104  # widths from which there is room for one more column
_HOST_NAMES = {(source, code): name for source, code, name, *_ in op_rows()}
# Most telling first: what kills or stops, what makes threads wait, what is merely frequent.
_HOST_ORDER: tuple[tuple[Source, int], ...] = (
    (Source.HOST, HostOp.OOM_KILL),
    (Source.HOST, HostOp.STOP_SIGNAL),
    (Source.HOST, HostOp.LATE_TIMER),
    (Source.HOST, HostOp.DIRECT_RECLAIM),
    (Source.HOST, HostOp.COMPACTION),
    (Source.HOST, HostOp.MAJOR_FAULT),
    (Source.TCP, TcpOp.RETRANSMIT),
    (Source.IO, IoOp.READ),
    (Source.IO, IoOp.WRITE),
    (Source.IO, IoOp.FLUSH),
    (Source.IO, IoOp.DISCARD),
    (Source.NET, NetOp.SEND),
    (Source.NET, NetOp.RECEIVE),
    (Source.HOST, HostOp.SCHED_SWITCH),
    (Source.HOST, HostOp.PAGE_ALLOC),
    (Source.HOST, HostOp.PROCESS_FORK),
    (Source.HOST, HostOp.PROCESS_EXEC),
    (Source.HOST, HostOp.PROCESS_EXIT),
)
# Programs (attach/host_events.py) without which an event is not seen.
_SEEN_BY: dict[tuple[Source, int], tuple[str, ...]] = {
    (Source.HOST, HostOp.STOP_SIGNAL): ("signal_generate",),
    (Source.HOST, HostOp.OOM_KILL): ("mark_victim",),
    (Source.HOST, HostOp.LATE_TIMER): ("timer_expired",),
    (Source.HOST, HostOp.DIRECT_RECLAIM): ("direct_reclaim_begin", "direct_reclaim_end"),
    (Source.HOST, HostOp.COMPACTION): ("compaction_begin", "compaction_end"),
    (Source.TCP, TcpOp.RETRANSMIT): ("tcp_retransmit",),
    **{(Source.IO, op): ("block_issue", "block_complete") for op in IoOp},
    (Source.NET, NetOp.SEND): ("socket_send",),
    (Source.NET, NetOp.RECEIVE): ("socket_receive",),
    (Source.HOST, HostOp.PAGE_ALLOC): ("page_alloc",),
}
_MIN_TABLE = 4  # rows below which host events are better counted side by side
_ALARMING = {HostOp.OOM_KILL, HostOp.STOP_SIGNAL}


def call_sections(state: LiveState, width: int) -> Iterator[Section]:
    """One table per layer that had calls."""
    for title, source in CALL_TABLES:
        ops = [op for op in state.ops if op.op.source is source]
        called = [op for op in ops if op.count]
        if ops:
            nested = sum(op.nested for op in ops)
            yield table_section(
                title,
                2 if source is Source.CUDA else 3,
                _call_head(title, nested, bool(called), width),
                [_call_row(op, width) for op in called],
                lambda shown, called=called: _more_calls(called[shown:]),  # type: ignore[misc]  # bound per table
                min_rows=5 if source is Source.CUDA else 3,
                preferred_rows=8 if source is Source.CUDA else 5,
            )


def _call_head(title: str, nested: int, has_rows: bool, width: int) -> Line:
    inside = f"{format_count(nested)} nested" if nested else ""
    if not has_rows:
        return ((f"{title}  ", "title"), (f"{inside}: made by traced calls, counted there", "dim"))
    names = ["count", "p50", "p95", "p99"] + (["max"] if width >= _MAX_FROM else []) + ["wall", "flag"]
    name_width, widths = _call_widths(width)
    first = f"{title} +{inside}" if inside else title
    if width >= _TOTAL_FROM:
        names.append("since start")
    spans: list[Span] = [(fitted(first, name_width), "title")]
    for name, column in zip(names, widths, strict=True):
        is_left = name == "flag"
        spans.append((("  " if is_left else "") + fitted(name, column - 2 * is_left, is_right=not is_left), "dim"))
    return tuple(spans)


def _call_widths(width: int) -> tuple[int, list[int]]:
    """Cells of the name, and of each further column with the space before it."""
    widths = [11, 8, 8, 8] + ([8] if width >= _MAX_FROM else []) + [7, 11] + ([14] if width >= _TOTAL_FROM else [])
    return width - sum(widths), widths


def _call_row(op: OpLine, width: int) -> Line:
    name_width, widths = _call_widths(width)
    flags = flags_of(op)
    style = "bad" if "err" in flags else "warn" if "slow" in flags else ""
    durations: list[float | None] = [op.p50_ns, op.p95_ns, op.p99_ns]
    if width >= _MAX_FROM:
        durations.append(op.max_ns or None)
    texts = [format_count(op.count), *map(_duration, durations), format_percent(op.wall_ratio)]
    spans: list[Span] = [(fitted(op.op.name, name_width), style)]
    spans += [(fitted(text, column, is_right=True), style) for text, column in zip(texts, widths, strict=False)]
    spans.append((fitted("  " + " ".join(flags), 11), style))
    if width >= _TOTAL_FROM:
        spans.append((fitted(format_count(op.total), 14, is_right=True), "dim"))
    return tuple(spans)


def flags_of(op: OpLine) -> list[str]:
    """The flags of a call: errors, slower than before, and (normal, but good to know) that it waits for the GPU."""
    flags = ["err"] if op.errors else []
    if op.is_slow:
        flags.append("slow")
    if op.op.kind & Kind.SYNC and len(flags) < 2:  # all three do not fit, and the first two matter
        flags.append("wait")
    return flags


def _more_calls(ops: Sequence[OpLine]) -> Line:
    count, ratio = sum(op.count for op in ops), sum(op.wall_ratio for op in ops)
    flagged = sorted({flag for op in ops for flag in flags_of(op)} - {"wait"})
    text = f"+ {len(ops)} more: {format_count(count)} calls, {format_percent(ratio)} of wall"
    return ((text, "dim"), ((f", some {' and '.join(flagged)}", "warn") if flagged else ("", "")))


def process_section(state: LiveState, width: int) -> Iterator[Section]:
    """The table of several traced processes, most time lost to other processes first."""
    if len(state.processes) < 2:
        return
    ordered = sorted(state.processes, key=lambda line: (-line.ran_instead_ns, -line.calls, line.pid))
    widths = (7, 10, 6, 11, 8, 10)
    name_width = width - sum(widths)
    names = ("rank", "user", "GPU", "calls", "waits", "lost CPU")
    head: list[Span] = [(fitted("PROCESSES", name_width), "title")]
    head += [(fitted(name, column, is_right=True), "dim") for name, column in zip(names, widths, strict=True)]

    def more(shown: int) -> Line:
        rest = ordered[shown:]
        calls, lost_ns = sum(line.calls for line in rest), sum(line.ran_instead_ns for line in rest)
        return ((f"+ {len(rest)} more: {format_count(calls)} calls, {format_ns(lost_ns)} lost CPU", "dim"),)

    def rows(shown: int) -> list[Line]:
        return [_process_row(line, name_width, widths, state.window_s) for line in ordered[:shown]]

    yield long_section("processes", 5, tuple(head), len(ordered), rows, more, preferred_rows=5)


def _process_row(line: ProcessLine, name_width: int, widths: Sequence[int], window_s: float) -> Line:
    rank = "-" if line.rank is None else str(line.rank) if line.world_size is None else f"{line.rank}/{line.world_size}"
    gpus = ",".join(map(str, line.gpus)) or "-"
    texts = (rank, line.user or "-", gpus, format_count(line.calls), format_percent(line.wait_ratio))
    label = f"[{line.pid}]"
    name = fitted(fitted(clean(line.name), max(1, name_width - len(label) - 1)).rstrip() + label, name_width)
    lost = "warn" if line.ran_instead_ns > 0.05 * window_s * 1e9 else ""  # below a run queue's usual noise
    rest = [" " + fitted(text, column - 1, is_right=True) for text, column in zip(texts, widths, strict=False)]
    return ("".join([name, *rest]), ""), (fitted(format_ns(line.ran_instead_ns), widths[-1], is_right=True), lost)


def host_section(state: LiveState, width: int) -> Section:
    """Host events with count and detail; events that did not happen, or cannot be seen, are named."""
    if state.probes.is_resting:
        return lines_section(
            "host events", 4, [(("HOST    ", "title"), ("not traced while no process is traced", "dim"))]
        )
    sums = {(event.source, event.op): event for event in state.host}
    if state.switches:
        switches = HostSum(source=Source.HOST, op=HostOp.SCHED_SWITCH, count=state.switches)
        sums[Source.HOST, HostOp.SCHED_SWITCH] = switches
    seen = sorted((sums[key] for key in _HOST_ORDER if key in sums), key=lambda event: not event.count)
    head: Line = (
        (fitted("HOST", 22), "title"),
        (fitted("count", 10, is_right=True), "dim"),
        ("  detail, of the traced processes", "dim"),
    )
    missing = {program.name for program in state.probes.missing}
    blind = [key for key in _HOST_ORDER if not missing.isdisjoint(_SEEN_BY.get(key, ()))]
    names = [_HOST_NAMES[key] for key in _HOST_ORDER if key not in sums and key not in blind]
    rows = [_host_row(event, state) for event in seen]
    if blind:
        rows.append((("not traced: " + ", ".join(_HOST_NAMES[key] for key in blind), "warn"),))
    if names:
        rows.append((("none: " + ", ".join(names), "dim"),))

    def more(shown: int) -> Line:
        blind_text = [f"not traced: {', '.join(_HOST_NAMES[key] for key in blind)}"] if blind else []
        rest = [_host_count(event) for event in seen[shown:]]
        return (
            (
                "; ".join([*blind_text, f"+ {len(rest)} more: {', '.join(rest)}" if rest else "none of the others"]),
                "dim",
            ),
        )

    table = table_section("host events", 4, head, rows, more, preferred_rows=6)
    items: list[Line] = [((_host_count(event), ""),) for event in seen] or [(("nothing", "dim"),)]
    flow = flow_section("host events", 4, (("HOST    ", "title"),), items, width)
    return replace(table, min_rows=1, body=lambda room: table.body(room) if room >= _MIN_TABLE else flow.body(room))


def _host_count(event: HostSum) -> str:
    return f"{_HOST_NAMES[event.source, event.op]} {format_count(event.count + event.other_count)}"


def _host_row(event: HostSum, state: LiveState) -> Line:
    name = _HOST_NAMES[event.source, event.op]
    style = "bad" if event.source is Source.HOST and event.op in _ALARMING and event.count else ""
    return (
        (fitted(name, 22), style),
        (fitted(format_count(event.count), 10, is_right=True), style),
        ("  " + "; ".join(_host_details(event, state)), style),
    )


def _host_details(event: HostSum, state: LiveState) -> Iterator[str]:
    if (event.source, event.op) == (Source.HOST, HostOp.SCHED_SWITCH):
        yield f"{format_count(state.involuntary_switches)} of them involuntary"
    parts = []
    if event.size_bytes:
        parts.append(format_bytes(event.size_bytes))
    if event.duration_ns and event.count:
        parts.append(f"{format_ns(event.duration_ns / event.count)} each")
    if parts:
        yield ", ".join(parts)
    if event.other_count:
        each = f", {format_ns(event.other_ns / event.other_count)} each" if event.other_ns else ""
        size = f", {format_bytes(event.other_bytes)}" if event.other_bytes else ""
        yield f"others {format_count(event.other_count)}{size}{each}"


def _duration(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)
