"""The terminal output of a demo: its seconds as they are recorded, the host, the breakdown, the verdict, a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ingero.demo.host_bars import HostBar, host_bars
from ingero.demo.machine import Machine, Mode
from ingero.demo.pulse import Breakdown, Second, gpu_stream_of, seconds
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.errors import IngeroError
from ingero.serve.text.styled_lines import report_lines
from ingero.serve.text.styles import Line, Style, folded, painted
from ingero.store.reader import open_reader
from ingero.units import format_ns, format_percent

_BAR = 30  # columns
_COLUMNS = ("second", "syncs", "median", "p99", "GPU busy")
_PARTS = {"idle": "GPU idle", "busy": "GPU busy", "return_delay": "sync return delay"}


class Screen:
    """Prints one demo after the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[Second] = []
        self._host: list[HostBar] = []
        self._live: Live | None = None

    def machine(self, machine: Machine) -> None:
        """Shows what the demos run on."""
        self._line(f"GPU: {machine.gpu}; driver: {machine.driver}; probes: {machine.probes}")
        if machine.mode is Mode.SIMULATED:
            self._line("no GPU is needed: the calls, the probes and the scheduler are real, only the GPU is simulated")

    def scenario(self, scenario: Scenario) -> None:
        """Shows the title of the next scenario."""
        self._console.print()
        self._console.rule(f"[bold]{escape(scenario.name)}[/bold]: {escape(scenario.title)}", align="left", style="dim")
        self._line(scenario.shows)

    def say(self, text: str) -> None:
        """Shows a line about what happens."""
        self._line(f"demo: {text}")

    @contextmanager
    def table(self) -> Iterator[None]:
        """The seconds and the host, shown as they come; a file gets the whole table at the end."""
        self._shown, self._host = [], []
        with Live(_table([]), console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None
        if not self._console.is_terminal:
            self._console.print()

    def watch(self, recording: Path, pid: int) -> None:
        """Shows what was recorded since the last time."""
        try:
            with open_reader(recording) as reader:
                gpu_stream, self._host = gpu_stream_of(reader, pid), host_bars(reader)
        except IngeroError:
            return  # the recorder has not written its first second yet
        if gpu_stream is not None and len(gpu_stream):
            self._shown = list(seconds(gpu_stream))
        if self._live is not None:
            self._live.update(Group(_table(self._shown), "", _host(self._host)), refresh=True)

    def breakdowns(self, before: Breakdown | None, now: Breakdown | None) -> None:
        """Shows the time breakdowns before and during the incident."""
        for name, breakdown in (("before", before), ("incident", now)):
            if breakdown is not None:
                for part, text in _PARTS.items():
                    share: float = getattr(breakdown, part)
                    self._line(f"  {name:<9} {text:<18} {format_percent(share):>6}  {_bar(share)}")

    def lines(self, lines: Iterable[str]) -> None:
        """Shows the lines of a report as `explain` prints them."""
        self._console.print()
        for line in report_lines(lines):
            self._line(line)

    def verdict(self, scenario: Scenario, causes: Sequence[str], number: Number | None) -> None:
        """Shows whether the diagnosis names the scenario's cause, other causes, and the number. causes: worst first."""
        self._console.print()
        if number is not None:
            self._line(((number.text, Style.HEADING),))
        is_named = scenario.cause in causes
        others = ", ".join(cause for cause in causes if cause != scenario.cause)
        if is_named:
            text = f"verdict: {scenario.cause}" + (f" (also on this host: {others})" if others else "")
        else:
            text = f"verdict: {others or 'none'}; the scenario is {scenario.cause}"
        self._line(((text, Style.OK if is_named else Style.FAILED),))

    def _line(self, line: Line) -> None:
        """Prints a line; Rich writes no styles where its console has no colors."""
        for part in folded(line, self._console.width) if self._console.is_terminal else (line,):
            self._console.print(Text.from_ansi(painted(part, is_colored=True)), highlight=False, soft_wrap=True)


def _table(rows: Iterable[Second]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == _COLUMNS[-1] else "right", no_wrap=True)
    for second in rows:
        busy = f"{_bar(second.busy_ratio):<{_BAR}} {format_percent(second.busy_ratio)}"
        lengths = format_ns(second.median_ns), format_ns(second.p99_ns)
        table.add_row(str(second.number), str(second.syncs), *lengths, busy)
    return table


def _host(bars: Iterable[HostBar]) -> Table:
    """The bars of the host, as a system monitor shows them."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for at, host_bar in enumerate(bars):
        bar = f"{_bar(host_bar.ratio):<{_BAR}}" if host_bar.ratio is not None else " " * _BAR
        table.add_row("" if at else "host", host_bar.name, bar, host_bar.text)
    return table


def _bar(share: float) -> str:
    return "#" * round(_BAR * min(max(share, 0.0), 1.0))
