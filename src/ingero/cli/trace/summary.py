"""Sums over a recording, and the closing lines of `trace`: what was recorded and how to look at it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ingero.capture.loop.drops import MEANINGS
from ingero.capture.loop.recorder import Recorder
from ingero.capture.loop.second import SecondOfCounts
from ingero.discover.file_systems import goes_with_its_container
from ingero.ops import BY_ID
from ingero.program import command
from ingero.serve.text.styles import Line, Style, marked
from ingero.step_counts import StepCount, counts_text
from ingero.store.vocabulary import STATES
from ingero.units import format_count, format_counter, format_ns

Echo = Callable[[Line], None]
_TOP = 3
_MAX_REFUSED = 10  # named in the closing summary; the counter holds all
_MAX_CULPRITS = 4096  # those with the least time are dropped first: three are named at the end


class Summary:
    """Sums over the recording."""

    def __init__(self, echo: Echo) -> None:
        self.echo = echo
        self._calls: Counter[str] = Counter()
        self._call_ns: Counter[str] = Counter()
        self._culprits: Counter[str] = Counter()
        self._states_ns = np.zeros(len(STATES), np.int64)
        self._counts: dict[int, StepCount] = {}
        self._began_s = time.monotonic()

    def add(self, second: SecondOfCounts) -> None:
        """Adds a second."""
        for cell in second.cells:
            name = BY_ID[cell.op].name
            if not cell.growth["count"]:
                continue
            self._calls[name] += int(cell.growth["count"])
            self._call_ns[name] += int(cell.growth["sum_ns"])
        for culprit_time in second.culprit_times:
            if culprit_time.culprit_pid:
                self._culprits[f"{culprit_time.culprit_name}[{culprit_time.culprit_pid}]"] += culprit_time.ns
        if len(self._culprits) > _MAX_CULPRITS:
            self._culprits = Counter(dict(self._culprits.most_common(_MAX_CULPRITS // 2)))
        self._states_ns += second.states_ns
        for process, count in second.intervals.counts.items():
            self._counts[process] = self._counts.get(process, StepCount()).plus(count)

    def write(self, recorder: Recorder, path: Path | None) -> None:
        """Prints the closing lines. path: the database, None if nothing was kept."""
        echo, elapsed = self.echo, time.monotonic() - self._began_s
        steps = counts_text(self._counts.values())
        echo(f"{elapsed:.1f} s, {format_count(self._calls.total())} calls, {steps}")
        for name, ns in self._call_ns.most_common(6):
            echo(f"  {name:28} {format_count(self._calls[name]):>12} calls {format_ns(ns):>10}")
        echo("threads of the traced processes, summed:")
        for index, state in enumerate(STATES):
            if self._states_ns[index]:
                echo(f"  {state:12} {format_ns(int(self._states_ns[index])):>10}")
        for name, ns in self._culprits.most_common(_TOP):
            echo(f"  while runnable, {name} ran {format_ns(ns)}")
        for name, count in recorder.seconds.drops_total.items():
            line = f"  dropped or corrected: {name} {format_counter(name, count)}: {MEANINGS.get(name, '')}"
            echo(marked(line, (2, line.index(":"), Style.WARNING)))
        for identity, name in list(recorder.traced_processes.refused.items())[:_MAX_REFUSED]:
            echo(f"  not traced, process limit reached: {name}[{identity.pid}]")
        if path:
            text, explain = f"recorded to {path}: look at it with  ", command("explain", "--db", path)
            echo(((text, None), (explain, Style.COMMAND)))
            if goes_with_its_container(path):
                echo(f"  it goes with this container: mount a folder at {path.parent} to keep it")
