"""Whole stacks at which an incident's worst affected process spent its time meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ingero.diagnose.findings import Affected, Incident
from ingero.serve.dashboard.selection import ALL, Selection, placed_times, sample_times
from ingero.serve.dashboard.stacks import Frame, frames_of, hash_text
from ingero.serve.dashboard.state import State
from ingero.store.call_stacks import PythonPlace, StackBook
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.store.waiters import Waiter
from ingero.units import SECOND_NS

_SHOWN = 3  # stacks of a kind; the view of stacks has all


@dataclass(frozen=True, slots=True, kw_only=True)
class StackShare:
    """Time at one stack. what: the call, or, outside calls, the state of the thread.

    is_on_line: it goes through the incident's line. frames: innermost first, native functions before Python's. note:
    what is missing of them, and why. waiting_thread: PID/TID of the thread whose Python frames these are, where the
    calling one has none; else "".
    """

    what: str
    ns: int
    count: int
    is_on_line: bool
    stack: str
    frames: list[Frame]
    note: str
    waiting_thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStacks(State):
    """calls: recorded calls by operation and stack; samples: outside calls. First those on the incident's line.

    process: number of the worst affected process, null where nobody is known to have lost time. count: of stacks in
    all.
    without_stack: recorded calls of which none was taken. where: what /api/v1/calls and /api/v1/tree are to be asked
    for the same calls; its line is only there where one of the stacks goes through it.
    """

    process: int | None
    calls: list[StackShare]
    samples: list[StackShare]
    count: int
    without_stack: int
    where: dict[str, str]


def selection_of(incident: Incident) -> Selection:
    """The time and the line of an incident. An event at one time gets a second before and after it."""
    begin_ns, end_ns = incident.start_ns, incident.end_ns
    if not begin_ns:  # older recordings do not tell when
        end_ns = None
    elif end_ns is not None and end_ns <= begin_ns:
        begin_ns, end_ns = begin_ns - SECOND_NS, end_ns + SECOND_NS
    place = incident.line and PythonPlace(incident.line.file, incident.line.line, incident.line.function)
    return Selection(begin_ns=begin_ns, end_ns=end_ns, line=place.full if place else "")


def incident_stacks(reader: Reader, window: Window, state: Mapping[str, Any], incident: Incident) -> IncidentStacks:
    """The longest stacks of an incident. window: the incident's."""
    only, book = selection_of(incident), StackBook(reader)
    affected: Affected | None = max(
        incident.affected, key=lambda affected_process: affected_process.lost_ns, default=None
    )
    process = affected.process if affected else None
    placed = [] if process is None else placed_times(reader, window, process, ALL, book)[0]
    samples = [] if process is None else sample_times(reader, window, process, ALL, book)
    calls = _shares(
        (
            (
                placed_time.time.name,
                placed_time.time.stack_hash,
                placed_time.waiter,
                placed_time.time.sum_ns,
                placed_time.time.count,
            )
            for placed_time in placed
        ),
        only,
        book,
    )
    outside = _shares(
        ((sample.state, sample.stack_hash, None, sample.ns, sample.count) for sample in samples), only, book
    )
    is_on_line = only.line and any(one.is_on_line for one in (*calls, *outside))
    where = {"begin_ns": str(window.begin_ns), "end_ns": str(window.end_ns), "line": only.line if is_on_line else ""}
    return IncidentStacks(
        **state,
        process=process,
        calls=calls[:_SHOWN],
        samples=outside[:_SHOWN],
        count=len(calls) + len(outside),
        without_stack=sum(
            placed_time.time.count for placed_time in placed if book.of(placed_time.time.stack_hash) is None
        ),
        where={name: value for name, value in where.items() if value},
    )


def _shares(
    rows: Iterable[tuple[str, int, Waiter | None, int, int]], only: Selection, book: StackBook
) -> list[StackShare]:
    """Shares of rows of (call or state, stack, waiter, ns, count); rows without a stack are left out."""
    sums: dict[tuple[str, int, Waiter | None], tuple[int, int]] = {}
    for what, stack_hash, waiter, ns, count in rows:
        known_ns, known_count = sums.get((what, stack_hash, waiter), (0, 0))
        sums[what, stack_hash, waiter] = known_ns + ns, known_count + count
    found = [
        StackShare(
            what=what,
            ns=ns,
            count=count,
            is_on_line=bool(only.line) and only.has_call(stack, waiter, book),
            stack=hash_text(stack_hash),
            frames=frames_of(stack, book.of(waiter.stack_hash) if waiter else None),
            note=stack.note,
            waiting_thread=waiter.thread if waiter else "",
        )
        for (what, stack_hash, waiter), (ns, count) in sums.items()
        if (stack := book.of(stack_hash)) is not None
    ]
    return sorted(found, key=lambda one: (not one.is_on_line, -one.ns))
