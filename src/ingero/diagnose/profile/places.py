"""Code lines and ranges behind waits and GPU idle time: which call waited where, what ran while the GPU was idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.findings import CodeLine
from ingero.diagnose.profile.blocked import GpuWaits
from ingero.diagnose.profile.idle import IdleGaps
from ingero.diagnose.profile.recording import ProfiledProcess, op_name
from ingero.store.call_stacks import PythonPlace, StackBook, own_marks

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_GAPS = 500  # longest idle gaps that get a place; the rest of the idle time would name no other place


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPlace:
    """Waits for the GPU by one operation at one line.

    kind: SYNC to ALLOC of `blocked`. host_memory: pageable or pinned, of copies; else "".
    """

    kind: str
    op: str
    host_memory: str
    line: CodeLine | None
    count: int
    waited_ns: int

    @property
    def text(self) -> str:
        """The place as text: `cudaMemcpyAsync (pageable) at box_predictor() ...`."""
        memory = f" ({self.host_memory})" if self.host_memory else ""
        at = f" at {self.line}" if self.line else ""
        return f"{self.op}{memory}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """Code that ran on the launching thread in long idle gaps: a line, else the innermost range."""

    line: CodeLine | None
    range_name: str
    gaps: int
    idle_ns: int

    @property
    def text(self) -> str:
        """The line as text, else the range."""
        return str(self.line) if self.line else f"in {self.range_name}" if self.range_name else "in no marked range"


def wait_places(profile: ProfiledProcess, waits: GpuWaits, book: StackBook) -> list[WaitPlace]:
    """All waits by operation and line, longest total first."""
    calls = profile.calls[waits.calls]
    book.read(int(number) for number in np.unique(calls["stack_hash"]))
    memory = _host_memory(profile, calls["start_ns"])
    kinds = _kind_names(waits)
    found: dict[tuple[str, str, str, CodeLine | None], list[int]] = defaultdict(lambda: [0, 0])
    for place, row in enumerate(calls):
        stack = book.of(int(row["stack_hash"]))
        key = (kinds[place], op_name(row["source"], row["op"]), memory[place], _line(stack.own if stack else None))
        found[key][0] += 1
        found[key][1] += int(waits.waited_ns[place])
    places = [
        WaitPlace(kind=kind, op=op, host_memory=host, line=line, count=count, waited_ns=waited)
        for (kind, op, host, line), (count, waited) in found.items()
        if waited
    ]
    return sorted(places, key=lambda place: -place.waited_ns)


def waits_before_gaps(
    profile: ProfiledProcess, waits: GpuWaits, gaps: IdleGaps, mine: Array, book: StackBook
) -> list[WaitPlace]:
    """The longest wait between each of these gaps (mask mine) and the gap before it: after it nothing was queued."""
    begins = profile.calls["start_ns"][waits.calls]
    chosen = np.zeros(len(waits.calls), bool)
    since = 0
    for begin, end in zip(gaps.begins[mine], gaps.ends[mine], strict=True):
        first, last = np.searchsorted(begins, (since, begin))
        if last > first:
            chosen[first + waits.waited_ns[first:last].argmax()] = True
        since = int(end)
    kinds = {name: mask[chosen] for name, mask in waits.kinds.items()}
    some = GpuWaits(kinds=kinds, calls=waits.calls[chosen], waited_ns=waits.waited_ns[chosen], whole=waits.whole)
    return wait_places(profile, some, book)


def host_places(
    profile: ProfiledProcess, gaps: IdleGaps, mine: Array, owned_ns: Array, book: StackBook | None
) -> list[HostPlace]:
    """The code that the launching threads ran in these gaps (mask mine), most time first.

    owned_ns: the part of each gap that counts. book: None where only ranges are to be named.
    """
    found: dict[tuple[CodeLine | None, str], list[int]] = defaultdict(lambda: [0, 0])
    longest = sorted(np.flatnonzero(mine), key=lambda place: -owned_ns[place])[:_MAX_GAPS]
    for place in longest:
        tid, begin, end = int(gaps.tids[place]), int(gaps.begins[place]), int(gaps.launch_ns[place])
        line = _line(_shared_line(profile, tid, end, book)) if book else None
        name = "" if line else innermost_range(profile, tid, (begin + end) // 2)
        found[line, name][0] += 1
        found[line, name][1] += int(owned_ns[place])
    places = [HostPlace(line=line, range_name=name, gaps=n, idle_ns=ns) for (line, name), (n, ns) in found.items()]
    return sorted(places, key=lambda place: -place.idle_ns)


def innermost_range(profile: ProfiledProcess, tid: int, at_ns: int) -> str:
    """The name of the innermost range of a thread at a time; an operator only where there is no other range."""
    for kinds in (("data_loading", "range"), ("operator",)):
        ranges = profile.ranges_of(*kinds)
        inside = ranges[(ranges["tid"] == tid) & (ranges["start_ns"] <= at_ns) & (ranges["end_ns"] > at_ns)]
        if len(inside):
            return profile.texts.get(int(inside[-1]["name"]), "")
    return ""


def _shared_line(profile: ProfiledProcess, tid: int, until_ns: int, book: StackBook) -> PythonPlace | None:
    """Where a thread was between the calls around a time: the innermost line of its own code on both calls' stacks.

    Stacks are compared from the outermost frame on: an inner function on both may have returned and been called again.
    """
    calls = profile.calls[profile.calls["tid"] == tid]
    after = int(np.searchsorted(calls["start_ns"], until_ns))
    if not 0 < after < len(calls):
        return None
    first, second = (book.of(int(calls[place]["stack_hash"])) for place in (after - 1, after))
    shared: PythonPlace | None = None
    if not first or not second:
        return None
    own = own_marks(first.python)
    for place, other, is_own in zip(reversed(first.python), reversed(second.python), reversed(own), strict=False):
        if place != other:
            break
        shared = place if is_own else shared
    return shared


def _line(place: PythonPlace | None) -> CodeLine | None:
    return CodeLine(file=place.file, line=place.line, function=place.function) if place else None


def _kind_names(waits: GpuWaits) -> Sequence[str]:
    names = np.full(len(waits.calls), "", object)
    for name, mask in waits.kinds.items():
        names[mask] = name
    found: list[str] = names.tolist()
    return found


def _host_memory(profile: ProfiledProcess, begins: Array) -> Sequence[str]:
    """The host memory, pageable or pinned, of the copies made by the calls with these begins; "": not known."""
    copies = profile.activities[profile.activities["host_memory"] != 0]
    copies = copies[np.argsort(copies["call_ns"], kind="stable")]
    if not len(copies):
        return [""] * len(begins)
    place = np.minimum(np.searchsorted(copies["call_ns"], begins), len(copies) - 1)
    is_its = copies["call_ns"][place] == begins
    return [
        profile.texts.get(int(number), "") if known else ""
        for number, known in zip(copies["host_memory"][place], is_its, strict=True)
    ]
