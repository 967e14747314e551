"""Lays out the state of the live view for a terminal of any size. Pure: no input but the state and the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ingero.cli.live import machine, recording, workload
from ingero.cli.live.lines import UNICODE, Glyphs, Line, cropped, merged_spans
from ingero.cli.live.sections import Section, beside, stacked
from ingero.cli.live.state import LiveState
from ingero.cli.live.tables import call_sections, host_section, process_section

LaidOut: TypeAlias = "Callable[[int], tuple[list[Line], list[str]]]"  # height -> lines, names of what found no room

WIDE = 160  # from here on there is room for two columns of 80


def frame(state: LiveState, width: int, height: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """The lines of a screen, at most `height`, none longer than `width`."""
    laid_out = (_wide if width >= WIDE else _narrow)(state, width, glyphs)
    lines, hidden = laid_out(height)
    if hidden:
        lines, hidden = laid_out(height - 1)
        lines.append(((f"no room for: {', '.join(hidden)}", "warn"),))
    return [merged_spans(cropped(line, width, glyphs.cut)) for line in lines[:height]]


def _narrow(state: LiveState, width: int, glyphs: Glyphs) -> LaidOut:
    sections = [
        *_top(state, width, glyphs),
        *workload.sections(state, width, glyphs),
        *call_sections(state, width),
        *process_section(state, width),
        *_rest(state, width),
        recording.legend(width),
    ]
    return lambda height: stacked(sections, height)


def _wide(state: LiveState, width: int, glyphs: Glyphs) -> LaidOut:
    """Calls and processes on the left; thread states, the host and the recording on the right."""
    left_width = width * 11 // 20  # the tables of calls have the most columns
    right_width = width - left_width - 3
    top = _top(state, width, glyphs)
    left = [*call_sections(state, left_width), *process_section(state, left_width)]
    right = [*workload.sections(state, right_width, glyphs), *_rest(state, right_width)]

    def laid_out(height: int) -> tuple[list[Line], list[str]]:
        lines, hidden = stacked(top, height // 2)
        room = max(0, height - len(lines) - 1)
        (left_lines, hidden_left), (right_lines, hidden_right) = stacked(left, room), stacked(right, room)
        lines += beside(left_lines, right_lines, left_width, right_width, glyphs.rule)
        return [*lines, *recording.legend(width).body(1)], [*hidden, *hidden_left, *hidden_right]

    return laid_out


def _top(state: LiveState, width: int, glyphs: Glyphs) -> list[Section]:
    return [
        recording.title(state),
        workload.traced_processes(state, width),
        machine.system(state, width, glyphs),
        machine.gpus(state, width, glyphs),
    ]


def _rest(state: LiveState, width: int) -> list[Section]:
    return [
        host_section(state, width),
        recording.drops(state, width),
        recording.own_cost(state, width),
        *recording.probes(state, width),
    ]
