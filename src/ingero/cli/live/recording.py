"""The live view of the recording itself: its length, probes, dropped data and cost; and the legend."""

from __future__ import annotations

from ingero.capture.loop.drops import MEANINGS
from ingero.cli.live.lines import Line, clean, flowed, shortened_path
from ingero.cli.live.sections import Section, flow_section, lines_section, table_section
from ingero.cli.live.state import DropLine, LiveState
from ingero.cli.live.window import SLOW_FACTOR
from ingero.ops import Source
from ingero.step_counts import counts_text
from ingero.units import format_bytes, format_count, format_counted, format_counter, format_percent

_PATH_FROM = 84  # cells from which there is room for more than the numbers
_SOURCES = {
    Source.CUDA: "runtime API",
    Source.DRIVER: "driver API",
    Source.CUDA_GRAPH: "graphs",
    Source.NCCL: "NCCL",
}


def title(state: LiveState) -> Section:
    """The first line; calls in flight stand here, because a hung call matters most."""
    minutes, seconds = divmod(int(state.recorded_s), 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    counts = f"{format_counted(len(state.processes), 'process')}, {format_counted(state.threads, 'thread')}"
    line: Line = (
        (f"ingero trace {clock}  ", "title"),
        (
            f"{format_counted(state.in_flight, 'call').upper()} IN FLIGHT FOR OVER 1 s  " if state.in_flight else "",
            "bad",
        ),
        (f"{counts}, {counts_text(state.counts.values())} in the last {state.window_s:.0f} s", ""),
    )
    return lines_section("title", 0, [line, *(((clean(text), "bad"),) for text in state.warnings[-2:])])


def drops(state: LiveState, width: int) -> Section:
    """Dropped or corrected data by reason; where there is room, with its meaning."""
    head: Line = (("DROPPED ", "title"),)
    if not state.drops:
        return lines_section("drops", 1, [(*head, ("nothing", "good"))])
    first: Line = (*head, ("or corrected since start (in the last seconds)", "dim"))
    rows: list[Line] = [
        ((f"  {_drop(drop)}", _drop_style(drop)), (f"  {MEANINGS.get(drop.name, '')}", "dim")) for drop in state.drops
    ]
    items: list[Line] = [((_drop(drop), _drop_style(drop)),) for drop in state.drops]

    def body(room: int) -> list[Line]:
        if room > len(rows):
            return [first, *rows]
        indent = " " * len(head[0][0])
        flow = flowed(items, width - len(indent), room)
        return [(*head, *line) if index == 0 else ((indent, ""), *line) for index, line in enumerate(flow)]

    return Section(name="drops", rank=1, min_rows=1, preferred_rows=2, max_rows=len(rows) + 1, body=body)


def _drop(drop: DropLine) -> str:
    recent = f" (+{format_counter(drop.name, drop.recent)})" if drop.recent else ""
    return f"{drop.name} {format_counter(drop.name, drop.total)}{recent}"


def _drop_style(drop: DropLine) -> str:
    return "warn" if drop.recent else ""


def own_cost(state: LiveState, width: int) -> Section:
    """The cost of tracing: CPU, memory, database size and rates."""
    items: list[Line] = []
    if state.agent_ratio is not None:
        items.append(((f"CPU {format_percent(state.agent_ratio)}{' of a core' if width > _PATH_FROM else ''}", ""),))
    if state.agent:
        items.append(((f"peak RSS {format_bytes(state.agent.peak_rss_bytes)}", ""),))
    is_kept = state.database_bytes is not None
    items.append(
        ((f"db {format_bytes(state.database_bytes or 0)}" if is_kept else "not recorded", "" if is_kept else "warn"),)
    )
    items.append(((f"{format_count(state.rows_per_s)} records/s", ""),))
    items.append(((f"{format_count(state.calls_per_s)} calls/s", ""),))
    if is_kept and width > _PATH_FROM:  # the closing summary names it, too
        items.append(((shortened_path(clean(state.database), width - 10), "dim"),))
    return flow_section("own cost", 1, (("AGENT   ", "title"),), items, width, preferred_rows=1)


def probes(state: LiveState, width: int) -> list[Section]:
    """Library copies with their probes, and what is not traced and why."""
    found = state.probes
    summary = (
        f"{format_count(found.attached)} ({found.mode}) in"
        if found.libraries
        else f"none yet: {clean(state.left_out) or 'no traced library is in use'}"
    )
    head: Line = (("PROBES  ", "title"), (summary, ""))
    rows: list[Line] = []
    for library in found.libraries:
        refused = f", {library.refused} refused" if library.refused else ""
        text = f" {library.attached} probes{refused}"
        path = shortened_path(clean(library.path), max(10, width - len(text) - 2))
        rows.append(((f"  {path}", ""), (text, "warn" if refused else "dim")))
    untraced = ", ".join(name for source, name in _SOURCES.items() if source not in found.sources)
    if untraced and rows:
        rows.append(((f"  not traced, no library with it is in use: {untraced}", "dim"),))

    def more(shown: int) -> Line:
        hidden = len(found.libraries) - shown
        texts = [f"+ {hidden} more libraries"] if hidden > 0 else []
        return (("  " + "; ".join([*texts, f"not traced: {untraced}"] if untraced else texts), "dim"),)

    sections = [table_section("libraries", 6, head, rows, more, preferred_rows=4)]
    if found.missing:
        gaps: list[Line] = [
            ((f"  {clean(missing.name)}: {clean(missing.reason)}", "warn"),) for missing in found.missing
        ]
        first: Line = (("NOT AVAILABLE", "title"),)

        def others(shown: int) -> Line:
            names = ", ".join(clean(missing.name) for missing in found.missing[shown:])
            return ((f"  + {len(gaps) - shown} more: {names}", "dim"),)

        sections.append(table_section("what is not available", 4, first, gaps, others, preferred_rows=3))
    return sections


def legend(width: int) -> Section:
    """The meaning of the columns and flags of the tables."""
    text = f"wall: of its processes' time  err: failed  slow: p99 > {SLOW_FACTOR}x before  wait: GPU"
    if width > 160:
        text = (
            f"wall: share of the wall time of the processes that call it   err: calls failed   slow: p99 over "
            f"{SLOW_FACTOR} times its p99 before   wait: waits for the GPU   ran instead: time / context switches"
        )
    return lines_section("legend", 6, [((text, "dim"),)])
