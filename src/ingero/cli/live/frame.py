"""Lays a state out for a terminal of any size. Pure: the same state and size give the same lines."""

from __future__ import annotations

from ingero.cli.live import machine, recording, workload
from ingero.cli.live.lines import UNICODE, Glyphs, Line, cropped, joined
from ingero.cli.live.sections import Section, beside, stacked
from ingero.cli.live.state import LiveState
from ingero.cli.live.tables import call_sections, host_section, process_section

WIDE = 160  # from here on there is room for two columns of 80


def frame(state: LiveState, width: int, height: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """The lines of a screen, at most `height`, none longer than `width`."""
    lay_out = _wide if width >= WIDE else _narrow
    lines, hidden = lay_out(state, width, height, glyphs)
    if hidden:
        lines, hidden = lay_out(state, width, height - 1, glyphs)
        lines.append(((f"no room for: {', '.join(hidden)}", "warn"),))
    return [joined(cropped(line, width, glyphs.cut)) for line in lines[:height]]


def _narrow(state: LiveState, width: int, height: int, glyphs: Glyphs) -> tuple[list[Line], list[str]]:
    return stacked(
        [
            *_top(state, width, glyphs),
            *workload.sections(state, width, glyphs),
            *call_sections(state, width),
            *process_section(state, width),
            *_rest(state, width),
            recording.legend(width),
        ],
        height,
    )


def _wide(state: LiveState, width: int, height: int, glyphs: Glyphs) -> tuple[list[Line], list[str]]:
    """Calls and processes on the left; accounts, the host and the recording on the right."""
    left_width = width * 11 // 20  # the tables of calls have the most columns
    right_width = width - left_width - 3
    top, hidden = stacked(_top(state, width, glyphs), height // 2)
    room = max(0, height - len(top) - 1)
    left, hidden_left = stacked([*call_sections(state, left_width), *process_section(state, left_width)], room)
    accounts = workload.sections(state, right_width, glyphs)
    right, hidden_right = stacked([*accounts, *_rest(state, right_width)], room)
    lines = [*top, *beside(left, right, left_width, right_width, glyphs.rule), *recording.legend(width).body(1)]
    return lines, [*hidden, *hidden_left, *hidden_right]


def _top(state: LiveState, width: int, glyphs: Glyphs) -> list[Section]:
    return [
        recording.title(state),
        workload.targets(state, width),
        machine.system(state, width, glyphs),
        machine.gpus(state, width, glyphs),
    ]


def _rest(state: LiveState, width: int) -> list[Section]:
    return [
        host_section(state, width),
        recording.losses(state, width),
        recording.own_cost(state, width),
        *recording.probes(state, width),
    ]
