"""The output of `trace` while it records: a live view on a terminal, else one line or JSON object per second."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Protocol

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.recorder import Recorder
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.records.recorded_calls import RecordedCall, RecordedCalls
from ingero.cli.change_line import change_line
from ingero.cli.python_lines import PythonLines
from ingero.cli.trace.summary import Echo, Summary
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.diagnose.incidents.incident_json import incident_json
from ingero.given_up import sentences
from ingero.ops import BY_ID, Kind
from ingero.serve.text.stack_lines import where_text
from ingero.serve.text.styled_lines import incident_change
from ingero.serve.text.styles import Style, marked
from ingero.step_counts import counts_text
from ingero.store.call_stacks import stack_of
from ingero.store.vocabulary import STATES
from ingero.units import (
    format_count,
    format_counted,
    format_counter,
    format_ns,
    format_percent,
    format_time_of_day,
)

_TOP = 3
_SHORTEST_RATE_S = 0.5  # over less, a rate is noise


class View(Protocol):
    """Shows a recording while it is made."""

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Called when the probes are attached."""

    def second(self, second: SecondOfCounts) -> None:
        """Called when a second has been stored."""

    def finding(self, change: Change) -> None:
        """Called in another thread when an incident was opened, updated or closed."""

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Called when everything is stored. path: the database, None if nothing was kept."""


@contextmanager
def open_view(
    echo: Echo, *, as_json: bool, verbose: bool, database: Path | None, is_service: bool = False
) -> Iterator[View]:
    """The view that suits standard output. database: where the recording goes, None if nothing is kept.

    is_service: standard output is the journal of a service manager.
    verbose: recorded calls are shown one by one, which the live view has no room for.

    Enter it innermost: a live view restores the terminal at the first signal, before the earlier handlers run.
    """
    if as_json:
        yield JsonView(echo, verbose=verbose)
    elif not verbose and can_show_live(sys.stdout, os.environ):
        from ingero.cli.live.view import LiveView  # noqa: PLC0415  # its tables and rich take 20 ms to import

        with LiveView(Summary(echo), database) as view:
            yield view
    elif is_service and not verbose:
        yield JournalView(echo)
    else:
        yield LineView(echo, verbose=verbose)


def can_show_live(stream: IO[str], environ: Mapping[str, str]) -> bool:
    """Whether a live view makes sense: a terminal that can move its cursor."""
    return stream.isatty() and environ.get("TERM", "") not in ("", "dumb", "unknown")


class LineView:
    """Prints plain lines, one per second."""

    def __init__(self, echo: Echo, *, verbose: bool = False) -> None:
        self._echo, self._is_verbose = echo, verbose
        self._summary = Summary(echo)
        self._calls: RecordedCalls | None = None
        self._has_stacks = False
        self._not_traced: tuple[str, ...] = ()
        self._python: PythonLines | None = None

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Prints the traced processes and libraries, and the calls that could not be probed."""
        attached = sum(result.is_attached for result in recorder.probes)
        count = format_counted(len(recorder.traced_processes), "process")
        self._echo(f"tracing {count}, {attached} probes ({kernel.mode.value})")
        for process in recorder.traced_processes:
            if process.identity:
                self._echo(f"  {process.name} [{process.pid}], {process.identity}")
        self._echo(f"  a probed call costs its thread {format_ns(round(recorder.overhead_limiter.costs.full_ns))}")
        for copy in recorder.libraries.copies:
            self._echo(f"  {copy.mapped_path}")
        self._calls, self._has_stacks = recorder.recorded_calls, recorder.has_stacks
        self._python = PythonLines(recorder, kernel) if recorder.has_stacks else None
        for symbol, path, reason in not_probed(recorder, is_all=self._is_verbose):
            self._warn(f"  not probed: {symbol} of {path}: {reason}")
        for library in recorder.discovery.unreadable.values():
            self._warn(f"  not probed: {library.mapped_path}: {library.reason}")
            if library.hint:
                self._warn(f"    fix: {library.hint}")
        for missing in kernel.unavailable:
            self._warn(f"  not available: {missing.name}: {missing.reason}")
        self._echo("")

    def second(self, second: SecondOfCounts) -> None:
        """Prints the calls, the GPU sync wait, and the processes that ran instead."""
        self._summary.add(second)
        for line in self._python.new() if self._python else ():
            self._echo(f"  {line}")
        self._show_calls()
        parts = [
            format_time_of_day(second.time_ns),
            format_counted(second.traced_processes, "process"),
            _rate(second),
            counts_text(second.intervals.counts.values()),
            f"device wait {format_ns(_sync_ns(second))}",
            f"runnable {format_ns(int(second.states_ns[STATES.index('runq')]))}",
        ]
        ran_instead_ns = Counter[str]()
        for culprit_time in second.culprit_times:
            if culprit_time.culprit_pid:
                ran_instead_ns[culprit_time.culprit_name] += culprit_time.ns
        parts += [f"{name} took {format_ns(ns)}" for name, ns in ran_instead_ns.most_common(_TOP) if ns > 1_000_000]
        own, agent = format_percent(second.overhead_ratio), format_percent(second.agent_cpu_ratio)
        parts.append(f"tracing took {own} of a thread, {agent} of a core")
        if second.in_flight:
            parts.append(f"{second.in_flight} calls in flight for over 1 s")
        line = "  ".join(parts)
        marks = [(0, len(parts[0]), Style.DIM)]
        if second.drops:
            counters = (f"{name} {format_counter(name, count)}" for name, count in second.drops.items())
            begin, line = len(line) + 2, f"{line}  lost: {', '.join(counters)}"
            marks.append((begin, len(line), Style.WARNING))
        self._echo(marked(line, *marks))
        self._show_tracing(second)

    def _show_tracing(self, second: SecondOfCounts) -> None:
        """Prints how tracing was reduced or resumed, where that has changed."""
        if second.not_traced != self._not_traced:
            self._not_traced = second.not_traced
            for text in sentences(",".join(second.not_traced)):
                self._warn(f"  tracing reduced: {text}")
            if not second.not_traced:
                self._echo("  full tracing resumed")

    def _warn(self, line: str) -> None:
        """Prints a line "  what: why", with `what` as a warning."""
        self._echo(marked(line, (2, line.index(":"), Style.WARNING)))

    def finding(self, change: Change) -> None:
        """Prints the change as one line."""
        self._echo(incident_change(change_line(change, time.time_ns())))

    def _show_calls(self, *, is_last: bool = False) -> None:
        calls, left_out = self._calls.take(is_last=is_last) if self._calls else ([], 0)
        for call in calls:
            self._echo(f"  {call_line(call)}")
            if self._has_stacks:
                self._echo(f"    at {_call_place(call)}")
        if left_out:
            self._echo(f"  ... and {format_count(left_out)} more recorded calls")

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Prints the closing summary."""
        self._show_calls(is_last=True)
        self._echo("")
        self._summary.write(recorder, path)


class JournalView(LineView):
    """Prints lines for a journal: changes only, not every second."""

    def second(self, second: SecondOfCounts) -> None:
        """Prints why there are no lines of Python, and changes of what is traced."""
        self._summary.add(second)
        for line in self._python.new() if self._python else ():
            self._echo(f"  {line}")
        self._show_tracing(second)

    def finding(self, change: Change) -> None:
        """Prints an incident that opened or closed; updates are in the recording."""
        if change.kind is not ChangeKind.UPDATED:
            super().finding(change)


class JsonView:
    """Prints one JSON object per line, as trace_events.schema.json says."""

    def __init__(self, echo: Echo, *, verbose: bool = False) -> None:
        self._echo, self._is_verbose = echo, verbose
        self._calls: RecordedCalls | None = None

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Writes the type `started`."""
        self._calls = recorder.recorded_calls
        self._write(
            "started",
            processes=[process.pid for process in recorder.traced_processes],
            identities={process.pid: process.identity for process in recorder.traced_processes if process.identity},
            libraries=[copy.mapped_path for copy in recorder.libraries.copies],
            probes=sum(result.is_attached for result in recorder.probes),
            mode=kernel.mode.value,
            py_walker={"is_kernel": kernel.walker.is_kernel, "reason": kernel.walker.reason},
            unavailable={missing.name: missing.reason for missing in kernel.unavailable},
            not_probed=[
                {"symbol": symbol, "library": library, "reason": reason}
                for symbol, library, reason in not_probed(recorder, is_all=self._is_verbose)
            ],
            trap_costs_ns=asdict(recorder.overhead_limiter.costs),
        )

    def second(self, second: SecondOfCounts) -> None:
        """Writes the types `call` (with --verbose) and `second`."""
        left_out = self._write_calls()
        calls: Counter[str] = Counter()
        for cell in second.cells:
            calls[BY_ID[cell.op].name] += int(cell.growth["count"])
        self._write(
            "second",
            time_unix_ns=second.time_ns,
            elapsed_s=round(second.elapsed_s, 6),
            processes=second.traced_processes,
            threads=second.threads,
            calls=dict(calls),
            records=second.records,
            records_not_shown=left_out if self._is_verbose else None,
            steps=second.intervals.total.steps,
            sync_intervals=second.intervals.total.sync_intervals,
            in_flight=second.in_flight,
            states_ns={state: int(second.states_ns[index]) for index, state in enumerate(STATES)},
            culprits=[
                {"pid": culprit_time.culprit_pid, "name": culprit_time.culprit_name, "ns": culprit_time.ns}
                for culprit_time in second.culprit_times
            ],
            drops=second.drops,
            overhead_ratio=round(second.overhead_ratio, 6),
            agent_cpu_ratio=round(second.agent_cpu_ratio, 6),
            level=second.level,
            not_traced=second.not_traced,
        )

    def finding(self, change: Change) -> None:
        """Writes the types `incident_opened`, `incident_updated` and `incident_closed`."""
        self._write(f"incident_{change.kind.value}", incident=incident_json(change.incident))

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Writes the type `finished`, after the last calls whose stacks were still missing."""
        self._write_calls(is_last=True)
        self._write(
            "finished",
            database=str(path) if path else None,
            drops=dict(recorder.seconds.drops_total),
            refused=[
                {"pid": identity.pid, "name": name} for identity, name in recorder.traced_processes.refused.items()
            ],
            unreadable={library.mapped_path: library.reason for library in recorder.discovery.unreadable.values()},
        )

    def _write_calls(self, *, is_last: bool = False) -> int:
        """Writes the type `call`; returns the number of calls left out."""
        recorded, left_out = self._calls.take(is_last=is_last) if self._calls else ([], 0)
        for call in recorded:
            self._write("call", **asdict(call))
        return left_out

    def _write(self, kind: str, **fields: object) -> None:
        self._echo(json.dumps({"type": kind, "version": 1, **fields}))


def not_probed(recorder: Recorder, *, is_all: bool) -> Iterator[tuple[str, str, str]]:
    """(symbol, library, reason) of probes that the kernel refused; with `is_all` also of calls a library lacks."""
    for result in recorder.probes:
        if result.site and result.reason:
            yield result.site.symbol, result.copy.mapped_path, result.reason
        elif result.missing and is_all:
            yield result.missing.op.name, result.copy.mapped_path, result.reason
        elif result.reason and not result.missing:
            yield "every call", result.copy.mapped_path, result.reason


def call_line(call: RecordedCall) -> str:
    """A recorded call as text: time, thread, duration, time by thread state, culprit and waker."""
    at = format_time_of_day(call.time_ns)
    parts = [
        f"{at}.{call.time_ns // 10**6 % 1000:03} {call.comm}[{call.tid}] {call.name} {format_ns(call.duration_ns)}"
    ]
    if call.states_ns:
        parts.append("= " + " + ".join(f"{format_ns(ns)} {state}" for state, ns in call.states_ns.items()))
    if call.culprit_ns:
        parts.append(f"{call.culprit_name}[{call.culprit_pid}] took {format_ns(call.culprit_ns)}")
    if call.waker:
        parts.append(f"woken by {call.waker}")
    if call.ret_code:
        parts.append(f"returned {call.ret_code}")
    return "  ".join(parts)


def _call_place(call: RecordedCall) -> str:
    if call.stack is None:
        return f"line not known: {call.stack_note}"
    return where_text(stack_of(call.stack, call.stack_note, is_python_whole=call.is_python_whole))


def _rate(second: SecondOfCounts) -> str:
    """The calls per second; for a short last second, the number of calls."""
    if second.elapsed_s < _SHORTEST_RATE_S:
        return f"{format_count(second.calls)} calls"
    return f"{format_count(second.calls / second.elapsed_s)} calls/s"


def _sync_ns(second: SecondOfCounts) -> int:
    return sum(int(cell.growth["sum_ns"]) for cell in second.cells if BY_ID[cell.op].kind & Kind.SYNC)
