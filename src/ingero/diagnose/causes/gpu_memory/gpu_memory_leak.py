"""What one line holds of the GPU's memory grows steadily, and hardly any of it is given back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.memory_in_use import Held, Place
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Fact, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window
from ingero.units import format_bytes, format_ns, format_percent

CAUSE = "gpu-memory-leak"
PIECES = 8
WARM_UP = 2  # pieces that do not count: models are loaded and caches filled in them
MIN_NS = 30_000_000_000  # without the warm-up; a model that is being loaded grows, too
MIN_ALLOCATIONS = 16
MIN_BYTES = 64 << 20
MIN_RATIO = 0.02  # of the GPU's memory, where that is less than MIN_BYTES
MOST_FREED = 0.5  # of what was allocated
LEAST_PIECE = 0.3  # of the mean growth: a piece that grew less is a plateau
LEAST_LATER = 0.6  # of the growth of the first half in the second; a cache that fills up grows less and less
MOST_UNPAIRED = 0.1  # of the allocations that are still live
_MINUTE_NS = 60_000_000_000
_HOUR_NS = 60 * _MINUTE_NS


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Call sites of traced processes that hold more in each piece of the window than in the one before."""
    rows = memory_in_use.levels(evidence, memory_in_use.ON_DEVICE)
    for number in sorted(set(rows["process"].tolist()) & evidence.processes.keys()):
        mine, process = rows[rows["process"] == number], evidence.processes[number]
        span = _span(evidence, process)
        if span is None or int(mine["peak_bytes"].max(initial=0)) < _least_bytes(evidence, process):
            continue
        pieces = [memory_in_use.held(evidence, piece, number) for piece in _pieces(span)]
        whole = Window(begin_ns=_pieces(span)[WARM_UP].begin_ns, end_ns=span.end_ns)
        for place, total in memory_in_use.held(evidence, whole, number).items():
            missed = memory_in_use.unpaired(mine, whole)
            if (
                _leaks(evidence, process, total, _growth(pieces, place))
                and missed <= MOST_UNPAIRED * total.growth_count
            ):
                yield _finding(evidence, process, whole, total, missed)


def _span(evidence: Evidence, process: Process) -> Window | None:
    """The part of the window in which the process was seen; None where that is too short."""
    begin = max(evidence.window.begin_ns, process.start_ns, process.first_seen_ns)
    end = min(evidence.window.end_ns, process.exit_ns or evidence.window.end_ns)
    is_long = (end - begin) * (PIECES - WARM_UP) / PIECES >= MIN_NS
    return Window(begin_ns=begin, end_ns=end) if is_long else None


def _pieces(span: Window) -> list[Window]:
    ends = [span.begin_ns + span.duration_ns * index // PIECES for index in range(PIECES + 1)]
    return [Window(begin_ns=begin, end_ns=end) for begin, end in pairwise(ends)]


def _growth(pieces: Sequence[dict[Place, Held]], place: Place) -> list[int]:
    return [one[place].growth_bytes if place in one else 0 for one in pieces[WARM_UP:]]


def _least_bytes(evidence: Evidence, process: Process) -> float:
    total = memory_in_use.memory_bytes(evidence, memory_in_use.gpu_of(evidence, process))
    return min(MIN_BYTES, MIN_RATIO * total) if total else MIN_BYTES


def _leaks(evidence: Evidence, process: Process, one: Held, growth: Sequence[int]) -> bool:
    """Enough of it, hardly anything given back, and no plateau."""
    mean = one.growth_bytes / len(growth)
    half = len(growth) // 2
    return (
        one.growth_bytes >= _least_bytes(evidence, process)
        and one.allocations >= MIN_ALLOCATIONS
        and one.freed_bytes <= MOST_FREED * one.allocated_bytes
        and min(growth) >= LEAST_PIECE * mean
        and sum(growth[half:]) >= LEAST_LATER * sum(growth[:half])
    )


def _finding(evidence: Evidence, process: Process, window: Window, one: Held, missed: int) -> Finding:
    per_minute = one.growth_bytes * _MINUTE_NS / window.duration_ns
    free = memory_in_use.free_at_end(evidence, memory_in_use.gpu_of(evidence, process))
    full_ns = int(free / per_minute * _MINUTE_NS) if free is not None else None
    container = evidence.container_of(process.cgroup_id)
    inside = f" in {container}" if container else ""
    until = f"; at this rate the GPU is full in {format_ns(full_ns)}" if full_ns is not None else ""
    doubt = f" (not exact: {missed} calls were not followed)" if missed else ""
    facts: dict[str, Fact] = {
        "bytes per minute": round(per_minute),
        "grown (bytes)": one.growth_bytes,
        "in use (bytes)": one.end_bytes,
        "allocations": one.allocations,
        "freed (ratio)": round(one.freed_bytes / max(one.allocated_bytes, 1), 4),
        "calls not followed": missed,
        "time until full (ns)": full_ns,
    }
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=f"{process.pid} {one.name} {one.place}",
        kind=FindingKind.EVENT,
        severity=Severity.HIGH if full_ns is not None and full_ns < _HOUR_NS else Severity.MEDIUM,
        window=window,
        summary=f"{process.name} [{process.pid}]{inside} holds {format_bytes(per_minute)} more GPU memory each minute, "
        f"allocated by {one.name} at {one.place}{until}{doubt}",
        culprits=(Culprit(pid=process.pid, name=process.name, container=container),),
        line=one.line,
        chain=(
            Link(
                text=f"{one.name} at {one.place} was called {one.allocations} times for "
                f"{format_bytes(one.allocated_bytes)}, of which "
                f"{format_percent(one.freed_bytes / max(one.allocated_bytes, 1))} was freed",
                structure="each free is paired with its allocation, by address, in the kernel",
                order=f"it grew in each of the last {PIECES - WARM_UP} pieces of {format_ns(window.duration_ns)}",
            ),
        ),
        fixes=(
            Fix(
                text="find what keeps these tensors: a list of training losses (append loss.item()), an unbounded cache"
            ),
            Fix(
                text="in PyTorch, show what holds them",
                command="torch.cuda.memory._record_memory_history(); torch.cuda.memory._dump_snapshot('memory.pickle')",
            ),
        ),
        evidence=facts,
    )


RULE = Rule(
    cause=CAUSE,
    title="one line holds more and more of the GPU's memory",
    order=90,
    needs=("allocations",),
    shows="exact sums of what each line has allocated and what of it was freed, bytes per minute, and the time until "
    "the GPU is full",
    limits="needs 40 s; growth in the first quarter of the window counts as warm-up; a cache that is meant to grow for "
    "the whole window looks the same; growth inside a framework's cache shows when the cache asks for more; pinned "
    "memory of the host is left out",
    watch=watch,
)
