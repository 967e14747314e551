"""What the live view says about the traced processes: which they are, their time by thread state, what ran instead."""

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


def targets(state: LiveState, width: int) -> Section:
    """Who is traced: name, pid, rank, user; the busiest first."""
    head: Line = (("TRACED  ", "title"),)
    if not state.processes:
        waiting = "none: waiting for a process that uses the CUDA runtime, driver or NCCL"
        return lines_section("traced processes", 0, [(*head, (waiting, "warn"))])
    items = [_target(one) for one in sorted(state.processes, key=lambda one: (-one.calls, one.pid))]
    return flow_section("traced processes", 0, head, items, width, most=2)  # each has a row in the table of processes


def _target(one: ProcessLine) -> Line:
    facts = []
    if one.rank is not None:
        facts.append(f"rank {one.rank}" + ("" if one.world_size is None else f"/{one.world_size}"))
    if one.user:
        facts.append(one.user)
    return ((f"{clean(one.name)}[{one.pid}]", "strong"), (" " + " ".join(facts) if facts else "", "dim"))


def sections(state: LiveState, width: int, glyphs: Glyphs) -> list[Section]:
    """The accounts: of all threads, of their traced calls; and who ran while they were runnable."""
    if not state.processes and not any(state.states_ns):
        return []
    return [
        _breakdown("thread states", "threads", state.states_ns, width, glyphs),
        _breakdown("call states", "in calls", state.call_states_ns, width, glyphs),
        _culprits(state, width),
    ]


def _breakdown(name: str, label: str, states_ns: Sequence[int], width: int, glyphs: Glyphs) -> Section:
    """A stacked bar of the clocks, and the numbers, most first."""
    total = sum(states_ns)
    head: Line = ((f"{label:{_LABEL}}", "title"), (f" {format_ns(total):>7} ", "strong"))
    if not total:
        return lines_section(name, 1, [(*head, ("nothing yet", "dim"))])
    parts = list(zip(states_ns, glyphs.clocks, STATES, strict=True))
    drawn = stacked_bar([(ns, glyph, clock) for ns, glyph, clock in parts], max(10, width // 5))
    has_room = width >= _TIMES_FROM
    shown = sorted((part for part in parts if part[0]), key=lambda part: -part[0])
    items: list[Line] = [
        ((f"{glyph} ", clock), (f"{clock} {f'{format_ns(ns)} ' if has_room else ''}{format_percent(ns / total)}", ""))
        for ns, glyph, clock in shown
    ]

    def more(first: int, hidden: int) -> str:
        return f"+ {hidden} more: {format_percent(sum(ns for ns, *_ in shown[first:]) / total)}"

    return flow_section(name, 1, (*head, *drawn, ("  ", "")), items, width, more=more, usual=2)


def _culprits(state: LiveState, width: int) -> Section:
    """Who ran while threads of the targets were runnable, processes of one name together: time / switches."""
    own = {one.pid for one in state.processes}
    groups: dict[tuple[str, bool], list[CulpritLine]] = {}
    for one in state.culprits:
        groups.setdefault((one.name, one.pid in own), []).append(one)
    found = [(name, is_own, ones, sum(one.ns for one in ones)) for (name, is_own), ones in groups.items()]
    shown = [group for group in sorted(found, key=lambda group: -group[3]) if group[3] >= _SHOWN_CULPRIT_NS]
    head: Line = (("ran instead ", "title"),)
    if not shown:
        nothing = ("nothing: traced threads ran when they were runnable", "dim")
        return lines_section("what ran instead", 1, [(*head, nothing)])
    items: list[Line] = []
    for name, is_own, ones, ns in shown:
        who = (
            "idle CPU"
            if ones[0].pid == 0
            else clean(name) + (f"[{ones[0].pid}]" if len(ones) == 1 else f" x{len(ones)}")
        )
        note = " (traced)" if is_own else ""
        text = f" {format_ns(ns)}/{format_count(sum(one.switches for one in ones))}"
        items.append(((who + note, "" if is_own or ones[0].pid == 0 else "warn"), (text, "")))

    def more(first: int, hidden: int) -> str:
        return f"+ {hidden} more: {format_ns(sum(ns for *_, ns in shown[first:]))}"

    return flow_section("what ran instead", 1, head, items, width, more=more, usual=2)
