"""The screen of the live view: golden texts, any size, strangers' names, and nothing that is cut silently."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment

from bench.busy_second import Load, gpu_state, state, window
from ingero.cli.live.frame import frame
from ingero.cli.live.lines import ASCII, STYLES, Line, plain, width_of
from ingero.cli.live.painting import Painter
from ingero.cli.live.state import GpuState, LiveState, ProcessLine
from ingero.events import STATES
from ingero.ops import Source

GOLDEN = Path(__file__).parents[2] / "data" / "live_view"
LOADS = {
    0: Load(processes=0, gpus=0),
    1: Load(processes=1, drops=2),
    60: Load(processes=60, culprits=40, gpus=8, drops=6),
}


@pytest.fixture(scope="module")
def states() -> dict[int, LiveState]:
    return {processes: state(load, window(load, 12)) for processes, load in LOADS.items()}


def test_neighbors_of_one_style_are_sent_as_one(states: dict[int, LiveState]) -> None:
    for line in frame(states[60], 200, 60):
        styles = [style for _, style in line]
        assert all(one != after for one, after in pairwise(styles))


@pytest.mark.parametrize("processes", LOADS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 50), (200, 60)])
def test_the_screen_is_the_golden_one(states: dict[int, LiveState], processes: int, width: int, height: int) -> None:
    path = GOLDEN / f"{processes}-processes-{width}x{height}.txt"
    text = plain(frame(states[processes], width, height))
    if os.environ.get("ACCEPT"):  # ACCEPT=1 writes them anew; review the difference
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("processes", LOADS)
def test_a_terminal_of_any_size_is_never_overrun(states: dict[int, LiveState], processes: int) -> None:
    sizes = [(width, height) for width in (20, 33, 79, 80, 100, 159, 160, 161, 200, 400) for height in (4, 10, 24, 90)]
    for width, height in sizes:
        lines = frame(states[processes], width, height)
        assert len(lines) <= height
        assert max(map(width_of, lines)) <= width, (width, height)


def painted(lines: Sequence[Line], width: int, height: int, *, encoding: str = "utf-8", **environ: str) -> str:
    """What a terminal is sent."""
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "xterm-256color", **environ})
    return Painter(console, encoding).screen(lines, width, height)


def rows_of(screen: str) -> list[str]:
    """What a terminal shows, without colors."""
    return re.sub(r"\x1b\[[\d;]*[mH]", "", screen).split("\n")


def test_each_line_fills_its_row_and_empty_rows_the_rest(states: dict[int, LiveState]) -> None:
    lines = frame(states[1], 80, 60)
    shown = rows_of(painted(lines, 80, 70))
    assert [row.rstrip() for row in shown] == [*plain(lines).splitlines(), *[""] * (70 - len(lines))]
    assert {cell_len(row) for row in shown} == {80}


class Spans:
    """Lines for Rich to draw."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield from (Segment(text, STYLES[style]) for text, style in line)
            yield Segment.line()


@pytest.mark.parametrize("environ", [{}, {"COLORTERM": "truecolor"}, {"NO_COLOR": "1"}, {"TERM": "xterm"}])
def test_a_terminal_is_sent_what_rich_would_send(states: dict[int, LiveState], environ: dict[str, str]) -> None:
    lines, output = frame(states[60], 200, 60), io.StringIO()
    environ = {"TERM": "xterm-256color", **environ}
    console = Console(file=output, force_terminal=True, width=200, height=60, _environ=environ)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        begin = output.tell()
        live.update(Spans(lines), refresh=True)
        sent = output.getvalue()[begin:]
    assert sent == painted(lines, 200, 60, **environ)


def test_without_color_no_color_is_sent(states: dict[int, LiveState]) -> None:
    screen = painted(frame(states[60], 200, 60), 200, 60, NO_COLOR="1")
    codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", screen) for code in found.split(";")}
    assert codes <= {"0", "1", "2"}  # reset, bold, dim


NASTY = "\x1b[2J[red]\u202eevil\x07\ud800"


def test_strangers_names_do_not_act_on_the_terminal(states: dict[int, LiveState]) -> None:
    processes = (ProcessLine(pid=7, name=NASTY, user="mallory"), ProcessLine(pid=8, name="[/bold]"))
    library = replace(states[1].probes.libraries[0], path=f"/tmp/{NASTY}/libcudart.so.12")
    probes = replace(states[1].probes, libraries=(library,))
    culprits = (replace(states[1].culprits[0], name=NASTY),)
    lines = frame(replace(states[1], processes=processes, probes=probes, culprits=culprits), 200, 60)
    text = "\n".join(rows_of(painted(lines, 200, 60)))
    assert r"\x1b[2J[red]\u202eevil\x07\ud800[7]" in text
    assert "[/bold][8]" in text
    assert r"/tmp/\x1b[2J[red]\u202eevil\x07\ud800/libcudart.so.12" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_wide_characters_keep_the_columns_straight(states: dict[int, LiveState]) -> None:
    processes = (
        ProcessLine(pid=7, name="訓練プロセスと長い名前のプログラムです", rank=3, world_size=8),
        ProcessLine(pid=8, name="a"),
    )
    lines = frame(replace(states[1], processes=processes), 80, 60)
    rows = ["".join(text for text, _ in line) for line in lines]
    head = next(row for row in rows if row.startswith("PROCESSES"))
    row = next(row for row in rows if "[7]" in row and row.rstrip().endswith("ns"))
    assert cell_len(row[: row.index("3/8") + 3]) == head.index("rank") + 4


def test_an_encoding_without_blocks_gets_letters(states: dict[int, LiveState]) -> None:
    processes = (ProcessLine(pid=7, name="é訓"),)
    screen = painted(frame(replace(states[1], processes=processes), 80, 24, ASCII), 80, 24, encoding="iso8859-1")
    screen.encode("iso8859-1")
    assert "é?[7]" in screen
    assert {len(row) for row in rows_of(screen)} == {80}


def test_rows_without_room_are_summed_up(states: dict[int, LiveState]) -> None:
    runtime = [op for op in states[60].ops if op.op.name.startswith("cuda") and op.op.name != "cudaGraphLaunch"]
    text = plain(frame(states[60], 80, 24))
    shown = [op for op in runtime if re.search(rf"^{op.op.name}\b", text, re.MULTILINE)]
    found = re.search(r"^\+ (\d+) more: ([\d,]+) calls", text, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == len(runtime) - len(shown)
    assert int(found[2].replace(",", "")) == sum(op.count for op in runtime) - sum(op.count for op in shown)


def test_calls_inside_other_calls_are_told_apart(states: dict[int, LiveState]) -> None:
    driver = [op for op in states[1].ops if op.op.source is Source.DRIVER]
    nested = sum(op.nested for op in driver)
    assert f"DRIVER API +{nested:,} nested" in plain(frame(states[1], 80, 24))
    only_nested = tuple(replace(op, count=0) for op in driver)
    text = plain(frame(replace(states[1], ops=only_nested), 80, 24))
    assert f"DRIVER API  {nested:,} nested: made by traced calls, counted there" in text


def test_parts_without_room_are_named(states: dict[int, LiveState]) -> None:
    *_, last = frame(states[60], 80, 10)
    assert "no room for: " in last[0][0]
    assert "host events" in last[0][0]


def test_a_call_that_hangs_stands_in_the_first_line(states: dict[int, LiveState]) -> None:
    first, *_ = frame(replace(states[1], in_flight=2), 80, 24)
    assert ("2 CALLS IN FLIGHT FOR OVER 1 s  ", "bad") in first


def test_a_silent_nvml_is_said_beside_its_last_values(states: dict[int, LiveState]) -> None:
    gpu = replace(gpu_state(2), no_answer_s=12.0)
    text = plain(frame(replace(states[1], gpu=gpu), 80, 24))
    assert "NVML: no answer for 12 s (these are its last values)" in text


def test_why_there_is_no_gpu_is_said(states: dict[int, LiveState]) -> None:
    text = plain(frame(replace(states[1], gpu=GpuState(reason="NVML: Driver Not Loaded")), 80, 24))
    assert "NVML: Driver Not Loaded" in text


def test_an_event_that_cannot_be_seen_is_not_said_to_be_absent(states: dict[int, LiveState]) -> None:
    text = plain(frame(states[1], 200, 60))
    assert re.search(r"^.*not traced: oom_kill\s*$", text, re.MULTILINE)
    assert not re.search(r"none: .*oom_kill", text)


def test_every_clock_has_a_glyph_and_a_style_of_its_own() -> None:
    assert len(set(ASCII.states)) == len(STATES)
    assert set(STATES) <= set(STYLES)
