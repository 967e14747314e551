"""GPU memory held by one code line grows steadily, and hardly any of it is freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.memory_in_use import HeldMemory, SiteKey
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Fact, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window
from ingero.units import format_bytes, format_ns, format_percent

CAUSE = "gpu-memory-leak"
PIECES = 8  # equal parts of the window
WARM_UP_PIECES = 2  # parts that do not count: models are loaded and caches filled
MIN_NS = 30_000_000_000  # without the warm-up; a model being loaded grows, too
MIN_ALLOCATIONS = 16  # of the line, without the warm-up
MIN_BYTES = 64 << 20  # growth without the warm-up
MIN_RATIO = 0.02  # of the GPU's memory, where that is less than MIN_BYTES
MAX_FREED_RATIO = 0.5  # of the bytes allocated
MIN_PIECE_GROWTH = 0.3  # of the mean growth: a part that grew less is a plateau
MIN_SECOND_HALF_GROWTH = 0.6  # times the growth of the first half; a cache that fills up grows less and less
MAX_UNPAIRED_RATIO = 0.1  # of the allocations still live
_MINUTE_NS = 60_000_000_000
_HOUR_NS = 60 * _MINUTE_NS


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Call sites of traced processes that hold more in each part of the window than in the previous one."""
    rows = memory_in_use.memory_levels(evidence, memory_in_use.GPU_MEMORY_KINDS)
    for number in sorted(set(rows["process"].tolist()) & evidence.processes.keys()):
        levels, process = rows[rows["process"] == number], evidence.processes[number]
        span = _span(evidence, process)
        if span is None or int(levels["peak_bytes"].max(initial=0)) < _min_bytes(evidence, process):
            continue
        pieces = [memory_in_use.held_by_place(evidence, piece, number) for piece in _pieces(span)]
        after_warm_up = Window(begin_ns=_pieces(span)[WARM_UP_PIECES].begin_ns, end_ns=span.end_ns)
        for place, total in memory_in_use.held_by_place(evidence, after_warm_up, number).items():
            unpaired_calls = memory_in_use.unpaired_calls(levels, after_warm_up)
            if (
                _is_leak(evidence, process, total, _growth(pieces, place))
                and unpaired_calls <= MAX_UNPAIRED_RATIO * total.growth_count
            ):
                yield _finding(evidence, process, after_warm_up, total, unpaired_calls)


def _span(evidence: Evidence, process: Process) -> Window | None:
    """The part of the window in which the process was seen; None where it is too short."""
    begin = max(evidence.window.begin_ns, process.start_ns, process.first_seen_ns)
    end = min(evidence.window.end_ns, process.exit_ns or evidence.window.end_ns)
    is_long = (end - begin) * (PIECES - WARM_UP_PIECES) / PIECES >= MIN_NS
    return Window(begin_ns=begin, end_ns=end) if is_long else None


def _pieces(span: Window) -> list[Window]:
    ends = [span.begin_ns + span.duration_ns * index // PIECES for index in range(PIECES + 1)]
    return [Window(begin_ns=begin, end_ns=end) for begin, end in pairwise(ends)]


def _growth(pieces: Sequence[dict[SiteKey, HeldMemory]], place: SiteKey) -> list[int]:
    return [holders[place].growth_bytes if place in holders else 0 for holders in pieces[WARM_UP_PIECES:]]


def _min_bytes(evidence: Evidence, process: Process) -> float:
    total = memory_in_use.memory_bytes(evidence, memory_in_use.gpu_of(evidence, process))
    return min(MIN_BYTES, MIN_RATIO * total) if total else MIN_BYTES


def _is_leak(evidence: Evidence, process: Process, holder: HeldMemory, growth: Sequence[int]) -> bool:
    """Whether enough memory is held, hardly any was freed, and the growth has no plateau."""
    mean = holder.growth_bytes / len(growth)
    half = len(growth) // 2
    return (
        holder.growth_bytes >= _min_bytes(evidence, process)
        and holder.allocations >= MIN_ALLOCATIONS
        and holder.freed_bytes <= MAX_FREED_RATIO * holder.allocated_bytes
        and min(growth) >= MIN_PIECE_GROWTH * mean
        and sum(growth[half:]) >= MIN_SECOND_HALF_GROWTH * sum(growth[:half])
    )


def _finding(evidence: Evidence, process: Process, window: Window, holder: HeldMemory, unpaired_calls: int) -> Finding:
    per_minute = holder.growth_bytes * _MINUTE_NS / window.duration_ns
    free = memory_in_use.free_at_end(evidence, memory_in_use.gpu_of(evidence, process))
    full_ns = int(free / per_minute * _MINUTE_NS) if free is not None else None
    container = evidence.container_of(process.cgroup_id)
    inside = f" in {container}" if container else ""
    until = f"; at this rate the GPU is full in {format_ns(full_ns)}" if full_ns is not None else ""
    doubt = f" (not exact: {unpaired_calls} calls were not followed)" if unpaired_calls else ""
    facts: dict[str, Fact] = {
        "bytes per minute": round(per_minute),
        "grown (bytes)": holder.growth_bytes,
        "in use (bytes)": holder.end_bytes,
        "allocations": holder.allocations,
        "freed (ratio)": round(holder.freed_bytes / max(holder.allocated_bytes, 1), 4),
        "calls not followed": unpaired_calls,
        "time until full (ns)": full_ns,
    }
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=f"{process.pid} {holder.name} {holder.place}",
        kind=FindingKind.EVENT,
        severity=Severity.HIGH if full_ns is not None and full_ns < _HOUR_NS else Severity.MEDIUM,
        window=window,
        summary=f"{process.name} [{process.pid}]{inside} holds {format_bytes(per_minute)} more GPU memory each minute, "
        f"allocated by {holder.name} at {holder.place}{until}{doubt}",
        culprits=(Culprit(pid=process.pid, name=process.name, container=container),),
        line=holder.line,
        chain=(
            Link(
                text=f"{holder.name} at {holder.place} was called {holder.allocations} times for "
                f"{format_bytes(holder.allocated_bytes)}, of which "
                f"{format_percent(holder.freed_bytes / max(holder.allocated_bytes, 1))} was freed",
                structure="each free is paired with its allocation, by address, in the kernel",
                order=f"it grew in each of the last {PIECES - WARM_UP_PIECES} pieces of "
                f"{format_ns(window.duration_ns)}",
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
    find_events=find_events,
)
