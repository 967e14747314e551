"""Tables of a report: of processes by part of their wall time and by thread state, of calls, and of verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import ProcessVerdict
from ingero.events import STATE_TEXTS, STATES
from ingero.identity import identity_text
from ingero.serve.html_report.markup import Markup, element, joined
from ingero.serve.html_report.time_chart import Layer
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.records import Clocks, Process
from ingero.units import format_count, format_counted, format_ns, format_percent

MAX_ROWS = 50
_MAX_CALLS = 8  # of a process


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> Markup:
    """A table; the first column is the row's heading. words: further columns that hold sentences."""
    shown = list(rows)
    if not shown:
        return Markup("")
    head = element("tr", (_head(name, at in words) for at, name in enumerate(heads)))
    body = (
        element(
            "tr",
            element("th", row[0], scope="row"),
            (_cell(heads[at], cell, at in words) for at, cell in enumerate(row[1:], 1)),
        )
        for row in shown[:MAX_ROWS]
    )
    left_out = element("p", _rest(len(shown)), class_="quiet") if len(shown) > MAX_ROWS else Markup("")
    return joined(
        (element("table", element("caption", caption), element("thead", head), element("tbody", body)), left_out)
    )


def name_of(process: Process) -> str:
    """Name, pid and rank."""
    rank = identity_text(process.rank, process.world_size, None, ("", "", ""))
    return f"{process.name} [{process.pid}]" + (f", {rank}" if rank else "")


def parts_tables(found: Mapping[int, tuple[GpuStream, Sequence[Layer]]], evidence: Evidence) -> Iterator[Markup]:
    """Wall time by part, one table for processes with steps and one for those with sync intervals."""
    kinds = dict.fromkeys(tuple(part.name for part in parts) for _, parts in found.values())
    for names in kinds:
        rows = [
            (
                name_of(evidence.processes[number]),
                evidence.steps[number].text
                if gpu_stream.is_steps
                else format_counted(len(gpu_stream.sync_intervals), gpu_stream.noun),
                format_ns(wall_ns(gpu_stream)),
                *(f"{format_ns(part.total_ns)} ({_share(part.total_ns, wall_ns(gpu_stream))})" for part in parts),
            )
            for number, (gpu_stream, parts) in found.items()
            if tuple(part.name for part in parts) == names
        ]
        yield table("Time breakdown of wall time", ("Process", "Judged by", "Wall time", *names), rows)


def states_table(evidence: Evidence, shown: Sequence[Process]) -> Markup:
    """Thread-state time of each process, summed over its threads."""
    totals = {totals.process: totals for totals in evidence.reader.thread_state_totals(evidence.window)}
    mine = [(one, totals[one.process]) for one in shown if one.process in totals]
    mine.sort(key=lambda pair: -pair[1].clocks.total_ns)
    used = [name for name in STATES if any(_clock(one.clocks, name) for _, one in mine)]
    rows = [
        (
            name_of(process),
            format_count(total.threads),
            *(f"{format_ns(_clock(total.clocks, name))} ({_share(_clock(total.clocks, name), total.clocks.total_ns)})"
              for name in used),
            format_count(total.switches),
        )
        for process, total in mine
    ]  # fmt: skip
    heads = ("Process", "Threads", *(STATE_TEXTS.get(name, name) for name in used), "Context switches")
    return table("Thread-state time, summed over threads", heads, rows)


def calls_table(evidence: Evidence, shown: Sequence[Process]) -> Markup:
    """The calls of each process, by total time."""
    names = {one.process: name_of(one) for one in shown}
    rows = []
    totals = sorted(evidence.reader.op_totals(evidence.window), key=lambda total: -total.sum_ns)
    for number, name in names.items():
        mine = [total for total in totals if total.process == number and total.count][:_MAX_CALLS]
        rows += [
            (f"{one.name} of {name}", format_count(one.count), format_ns(one.sum_ns), format_ns(one.sum_ns / one.count),
             format_ns(one.max_ns) if one.max_ns else "")
            for one in mine
        ]  # fmt: skip
    return table(
        f"Calls, sorted by total time ({_MAX_CALLS} of each process)",
        ("Call", "Count", "Total", "Mean", "Longest"),
        rows,
    )


def verdicts_table(verdicts: Sequence[ProcessVerdict]) -> Markup:
    """The verdict on each process."""
    rows = [
        (f"{one.name} [{one.pid}]" + (f" rank {one.rank}" if one.rank is not None else "")
         + (f" on {one.node}" if one.node else ""), one.text)
        for one in sorted(verdicts, key=lambda verdict: not verdict.has_incident)
    ]  # fmt: skip
    return table("Verdict of each process", ("Process", "Verdict"), rows, words=(1,))


def _clock(clocks: Clocks, name: str) -> int:
    return int(getattr(clocks, f"{name}_ns"))


def wall_ns(gpu_stream: GpuStream) -> int:
    """Wall time of all steps or sync intervals of a stream."""
    return int((gpu_stream.sync_intervals["sync_end_ns"] - gpu_stream.sync_intervals["prev_sync_end_ns"]).sum())


def _share(part_ns: int, whole_ns: int) -> str:
    return format_percent(part_ns / max(whole_ns, 1))


def _head(name: str, is_words: bool) -> Markup:
    return element("th", name, scope="col", class_="words" if is_words else None)


def _cell(head: str, value: str, is_words: bool) -> Markup:
    return element("td", value, data_head=head, class_="words" if is_words else None)


def _rest(count: int) -> str:
    return f"and {format_count(count - MAX_ROWS)} more, left out here; ingero explain --json has all"
