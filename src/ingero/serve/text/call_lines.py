"""The cost of a process's calls as text: by operation, GPU kernel and code line, the longest, and those in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from ingero.events import STATE_TEXTS, STATES
from ingero.ops import Source
from ingero.serve.text.call_places import CallPlaces
from ingero.serve.text.line_costs import line_cost_lines, line_costs
from ingero.serve.text.stack_lines import stack_lines
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import Call, Clocks, CopyShare, OpTotals, Process, Window
from ingero.store.waiters import Waiters
from ingero.units import format_bytes, format_count, format_ns, format_percent, format_time_of_day

_CALL_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
_WORST_CALLS = 5
_TOP_OPS = 12
_TOP_KERNELS = 8


def call_lines(totals: Sequence[OpTotals]) -> Iterator[str]:
    """A table of the operations, highest total first."""
    outermost = [total for total in totals if total.count]
    if not outermost:
        return
    yield (
        f"  {'call':30}{'count':>12}{'total':>11}{'p50':>10}{'p99':>10}{'max':>10}"
        f"{'running':>8}{'runnable':>9}{'sleeping':>9}{'errors':>8}"
    )
    for total in outermost[:_TOP_OPS]:
        yield (
            f"  {total.name:30}{format_count(total.count):>12}{format_ns(total.sum_ns):>11}"
            f"{_optional(total.p50_ns):>10}{_optional(total.p99_ns):>10}{format_ns(total.max_ns):>10}"
            f"{_clock_share(total, 'run'):>8}{_clock_share(total, 'runq', 'throttled', 'yielded'):>9}"
            f"{_clock_share(total, 'sleep', 'io', 'uninterruptible', 'stopped'):>9}{_count(total.errors):>8}"
        )
    if len(outermost) > _TOP_OPS:
        rest = outermost[_TOP_OPS:]
        count, spent = sum(one.count for one in rest), sum(one.sum_ns for one in rest)
        yield f"  {f'{len(rest)} other calls':30}{format_count(count):>12}{format_ns(spent):>11}"


def copy_lines(totals: Sequence[OpTotals], shares: Sequence[CopyShare]) -> Iterator[str]:
    """How much was copied, how much of it between host and GPU, and for how long asynchronous copies waited."""
    moved = sum(total.bytes for total in totals if "emcpy" in total.name and total.count)
    ways = (
        (sum(share.host_to_gpu_bytes for share in shares), "from host to GPU"),
        (sum(share.gpu_to_host_bytes for share in shares), "from GPU to host"),
    )
    of_it = ", ".join(f"{format_bytes(int(size))} {way}" for size, way in ways if size >= 1)
    if moved:
        yield f"  copied: {format_bytes(moved)}{f', of it {of_it}' if of_it else ''}"
    names = {(total.source, total.op): total.name for total in totals}
    for one in shares:
        if one.blocked_ns >= 1 and (name := names.get((one.source, one.op))):
            yield f"  blocked in {name} (pageable): {format_ns(int(one.blocked_ns))}"


def kernel_lines(reader: Reader, window: Window, process: Process) -> Iterator[str]:
    """The kernels launched most, and the issuing libraries; nothing where the recording is too old for it."""
    if not reader.is_recorded("kernel_launches"):
        return
    counts: Counter[tuple[str, str]] = Counter()
    for one in reader.kernel_launches(window, process=process.process):
        name = one.short_name or f"handle {one.function:#x}, without a name: created before tracing"
        counts[name, one.library] += one.count
    if counts:
        yield f"  {'launches':>12}  kernel"
    for (name, library), count in counts.most_common(_TOP_KERNELS):
        yield f"  {format_count(count):>12}  {name}" + (f"  from {library}" if library else "")
    if len(counts) > _TOP_KERNELS:
        rest = counts.total() - sum(count for _, count in counts.most_common(_TOP_KERNELS))
        yield f"  {format_count(rest):>12}  by {len(counts) - _TOP_KERNELS} other kernels"


def code_lines(
    reader: Reader,
    window: Window,
    process: Process,
    totals: Sequence[OpTotals],
    book: StackBook,
    *,
    whole_stacks: bool,
) -> Iterator[str]:
    """The lines that cost most, and those of the longest calls."""
    times = reader.stack_times(window, process=process.process, sources=_CALL_SOURCES)
    waiters = Waiters(reader, window, process=process.process)
    placed, not_looked_for = waiters.placed(times, book)
    yield from line_cost_lines(line_costs(placed, book), [total for total in totals if total.source in _CALL_SOURCES])
    if not_looked_for:
        yield f"  {not_looked_for}"
    has_stacks = any(book.of(one.stack_hash) for one in times)
    worst = CallPlaces(book, waiters, is_whole=whole_stacks) if has_stacks else None
    yield from _worst(reader, window, process, worst)


def in_flight_lines(reader: Reader, window: Window, book: StackBook, *, whole_stacks: bool) -> Iterator[str]:
    """Calls in flight when last checked. whole_stacks: also the stacks of their processes' other threads."""
    open_calls = reader.in_flight(window)
    for call in open_calls:
        yield f"Open for {format_ns(call.time_ns - call.since_ns)} when last seen: {call.name} of {call.pid}/{call.tid}"
        stack = book.of(call.stack_hash)
        if stack:
            yield from (f"  {line}" for line in stack_lines(stack))
        elif call.stack_hash:
            yield "  line not known: its stack was dropped"
    if whole_stacks:
        for process, pid in dict.fromkeys((one.process, one.pid) for one in open_calls):
            mine = [one for one in open_calls if one.process == process]
            meanwhile = Window(begin_ns=min(one.since_ns for one in mine), end_ns=window.end_ns)
            yield from _other_threads(reader, meanwhile, process, pid, {one.tid for one in mine}, book)


def _other_threads(
    reader: Reader, window: Window, process: int, pid: int, in_calls: Container[int], book: StackBook
) -> Iterator[str]:
    last = [one for one in reader.last_samples(window, process=process) if one.tid not in in_calls]
    book.read(one.stack_hash for one in last)
    for one in last:
        ago = format_ns(window.end_ns - one.time_ns)
        state = STATE_TEXTS[one.state]
        yield f"Meanwhile: {one.comm} {pid}/{one.tid}, {state} when last sampled, {ago} before the end"
        stack = book.of(one.stack_hash)
        yield from (f"  {line}" for line in stack_lines(stack)) if stack else ("  line not known: no stack",)


def _worst(reader: Reader, window: Window, process: Process, places: CallPlaces | None) -> Iterator[str]:
    found = [
        call
        for source in _CALL_SOURCES
        for call in reader.worst_calls(window, process=process.process, source=source, limit=_WORST_CALLS)
    ]
    worst = sorted(found, key=lambda call: -call.duration_ns)[:_WORST_CALLS]
    if worst:
        yield "  longest recorded calls:"
    for call in worst:
        yield _call(call)
        if places:
            yield from (f"      {line}" for line in places.lines(call))


def _call(call: Call) -> str:
    parts = [
        f"    {format_time_of_day(call.start_ns)}.{call.start_ns // 10**6 % 1000:03}",
        f"{call.name} {format_ns(call.duration_ns)} by {call.comm}[{call.tid}]",
    ]
    if call.caller_library:
        parts.append(f"from {call.caller_library}")
    if call.clocks:
        parts.append("= " + " + ".join(_clocks(call.clocks)))
    if call.culprit_ns:
        parts.append(f"{call.culprit_name} [{call.culprit_pid}] ran instead {format_ns(call.culprit_ns)}")
    if call.waker_kind and call.waker_kind != "none":
        waker = f"{call.waker_name}[{call.waker_tid}]" if call.waker_kind == "thread" else call.waker_kind
        parts.append(f"woken by {waker}")
    if call.ret_code:
        parts.append(f"returned {call.ret_code}")
    return "  ".join(parts)


def _clocks(clocks: Clocks) -> list[str]:
    values = [(clock, getattr(clocks, f"{clock}_ns")) for clock in STATES]
    return [f"{format_ns(ns)} {clock}" for clock, ns in values if ns] or ["0 ns"]


def _count(value: int | None) -> str:
    return "-" if value is None else format_count(value)


def _optional(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)


def _clock_share(total: OpTotals, *names: str) -> str:
    if total.clocks is None or not total.sum_ns:
        return "-"
    return format_percent(sum(getattr(total.clocks, f"{name}_ns") for name in names) / total.sum_ns)
