"""The live view of the traced processes: their names, their thread-state time, and what ran instead."""

from __future__ import annotations

from collections.abc import Sequence

from ingero.cli.live.lines import Glyphs, Line, clean, stacked_bar
from ingero.cli.live.sections import Section, flow_section, lines_section
from ingero.cli.live.state import CulpritLine, LiveState, ProcessLine
from ingero.events import STATES
from ingero.units import format_count, format_ns, format_percent

_LABEL = 8
_TIMES_FROM = 86  # cells from which three clocks fit with times and shares; below, shares of the total must do
_SHOWN_CULPRIT_NS = 1_000_000  # less is the scheduler's everyday business


def traced_processes(state: LiveState, width: int) -> Section:
    """The traced processes: name, pid, rank, user; most calls first."""
    head: Line = (("TRACED  ", "title"),)
    if not state.processes:
        waiting = "none: waiting for a process that uses the CUDA runtime, driver or NCCL"
        return lines_section("traced processes", 0, [(*head, (waiting, "warn"))])
    items = [_process_item(line) for line in sorted(state.processes, key=lambda line: (-line.calls, line.pid))]
    return flow_section(
        "traced processes", 0, head, items, width, max_rows=2
    )  # each has a row in the table of processes


def _process_item(line: ProcessLine) -> Line:
    facts = []
    if line.rank is not None:
        facts.append(f"rank {line.rank}" + ("" if line.world_size is None else f"/{line.world_size}"))
    if line.user:
        facts.append(line.user)
    return ((f"{clean(line.name)}[{line.pid}]", "strong"), (" " + " ".join(facts) if facts else "", "dim"))


def sections(state: LiveState, width: int, glyphs: Glyphs) -> list[Section]:
    """The thread-state time of all threads and of their traced calls; and what ran while they were runnable."""
    if not state.processes and not any(state.states_ns):
        return []
    return [
        _breakdown("thread states", "threads", state.states_ns, width, glyphs),
        _breakdown("call states", "in calls", state.call_states_ns, width, glyphs),
        _culprits(state, width),
    ]


def _breakdown(name: str, label: str, states_ns: Sequence[int], width: int, glyphs: Glyphs) -> Section:
    """A stacked bar of the time by thread state, and the numbers, most time first."""
    total = sum(states_ns)
    head: Line = ((f"{label:{_LABEL}}", "title"), (f" {format_ns(total):>7} ", "strong"))
    if not total:
        return lines_section(name, 1, [(*head, ("nothing yet", "dim"))])
    parts = list(zip(states_ns, glyphs.states, STATES, strict=True))
    drawn = stacked_bar([(ns, glyph, state) for ns, glyph, state in parts], max(10, width // 5))
    has_room = width >= _TIMES_FROM
    shown = sorted((part for part in parts if part[0]), key=lambda part: -part[0])
    items: list[Line] = [
        ((f"{glyph} ", state), (f"{state} {f'{format_ns(ns)} ' if has_room else ''}{format_percent(ns / total)}", ""))
        for ns, glyph, state in shown
    ]

    def more(first: int, hidden: int) -> str:
        return f"+ {hidden} more: {format_percent(sum(ns for ns, *_ in shown[first:]) / total)}"

    return flow_section(name, 1, (*head, *drawn, ("  ", "")), items, width, more=more, preferred_rows=2)


def _culprits(state: LiveState, width: int) -> Section:
    """What ran while traced threads were runnable, processes of one name together: time / context switches."""
    own = {process.pid for process in state.processes}
    groups: dict[tuple[str, bool], list[CulpritLine]] = {}
    for culprit in state.culprits:
        groups.setdefault((culprit.name, culprit.pid in own), []).append(culprit)
    found = [
        (name, is_own, culprits, sum(culprit.ns for culprit in culprits)) for (name, is_own), culprits in groups.items()
    ]
    shown = [group for group in sorted(found, key=lambda group: -group[3]) if group[3] >= _SHOWN_CULPRIT_NS]
    head: Line = (("ran instead ", "title"),)
    if not shown:
        nothing = ("nothing: traced threads ran when they were runnable", "dim")
        return lines_section("what ran instead", 1, [(*head, nothing)])
    items: list[Line] = []
    for name, is_own, culprits, ns in shown:
        label = (
            "idle CPU"
            if culprits[0].pid == 0
            else clean(name) + (f"[{culprits[0].pid}]" if len(culprits) == 1 else f" x{len(culprits)}")
        )
        note = " (traced)" if is_own else ""
        text = f" {format_ns(ns)}/{format_count(sum(culprit.switches for culprit in culprits))}"
        items.append(((label + note, "" if is_own or culprits[0].pid == 0 else "warn"), (text, "")))

    def more(first: int, hidden: int) -> str:
        return f"+ {hidden} more: {format_ns(sum(ns for *_, ns in shown[first:]))}"

    return flow_section("what ran instead", 1, head, items, width, more=more, preferred_rows=2)
