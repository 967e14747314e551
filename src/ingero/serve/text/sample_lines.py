"""Text about a process's threads outside GPU calls: the lines at which they ran, and at which they slept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingero.events import STATE_TEXTS
from ingero.store.call_stacks import CallStack, PythonPlace
from ingero.store.records import SampleTotals
from ingero.units import format_count, format_ns

_TOP_LINES = 5  # of the running and of the sleeping lines
_NO_LINE = "line not known (no stack)"
_COLLECTING = "collecting garbage"


@dataclass(frozen=True, slots=True)
class SampledLine:
    """The samples of one process in one state at one line. state: in words; threads: how many."""

    state: str
    is_running: bool
    place: str
    ns: int
    samples: int
    threads: int


def sampled_lines(samples: Sequence[SampleTotals], stacks: Mapping[int, CallStack]) -> list[SampledLine]:
    """Samples by state and line, most time first."""
    found: dict[tuple[str, str], list[SampleTotals]] = defaultdict(list)
    for sample in samples:
        state = STATE_TEXTS[sample.state] + (f", {_COLLECTING}" if sample.is_collecting else "")
        found[state, _place(stacks.get(sample.stack_hash))].append(sample)
    lines = [
        SampledLine(
            state=state,
            is_running=group[0].state == "run",
            place=place,
            ns=sum(one.ns for one in group),
            samples=sum(one.count for one in group),
            threads=len({one.tid for one in group}),
        )
        for (state, place), group in found.items()
    ]
    return sorted(lines, key=lambda line: -line.ns)


def _place(stack: CallStack | None) -> str:
    if stack is None:
        return _NO_LINE
    if stack.own:
        return _with_inner(stack.own, stack.python[0])
    return f"no Python frame, in {stack.native[0].text}" if stack.native else _NO_LINE


def _with_inner(own: PythonPlace, inner: PythonPlace) -> str:
    """The user's own line, and the library function that it called."""
    return own.short if own == inner else f"{own.short}, in {inner.function}"


def sample_lines(lines: Sequence[SampledLine]) -> Iterator[str]:
    """The lines with most time, running ones first; nothing where there are no samples."""
    if not lines:
        return
    total = sum(line.samples for line in lines)
    yield f"  outside GPU calls, summed over threads, from {format_count(total)} samples:"
    for group in ([line for line in lines if line.is_running], [line for line in lines if not line.is_running]):
        for line in group[:_TOP_LINES]:
            threads = f" ({format_count(line.threads)} threads)" if line.threads > 1 else ""
            yield f"    {format_ns(line.ns):>10}  {line.state}: {line.place}{threads}"
        rest = group[_TOP_LINES:]
        if rest:
            what = STATE_TEXTS["run"] if rest[0].is_running else "sleeping or blocked"
            yield f"    {format_ns(sum(one.ns for one in rest)):>10}  {what}: {format_count(len(rest))} other lines"
