"""The account of a recording as text: per process the device's time, the clocks, the calls; and the losses."""

from __future__ import annotations

import enum
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ingero.diagnose.accounting import LaneAccount, Part, accounts_of_sums, lane_accounts, main_lane
from ingero.events import CLOCK_TEXTS, CLOCKS
from ingero.identity import identity_text, short_id
from ingero.ops import Source
from ingero.serve.coverage import coverage_lines
from ingero.serve.drain_lines import DrainLines, drain_lines
from ingero.serve.line_costs import line_cost_lines, line_costs
from ingero.serve.memory_lines import memory_lines
from ingero.serve.sample_lines import sample_lines, sampled_lines
from ingero.serve.stack_lines import stack_lines, where_text
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import Call, Clocks, ClockTotals, Container, CulpritTotals, OpTotals, Process, Window
from ingero.units import format_bytes, format_count, format_ns, format_percent

_CALL_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
_SOURCE_TEXTS = {
    "IO": "block I/O",
    "TCP": "TCP retransmits",
    "NET": "bytes on sockets",
    "NCCL": "NCCL calls",
    "GPU": "GPU utilisation, clocks and memory",
}
_TOP_CULPRITS = 5
_TOP_PIDS = 4
_WORST_CALLS = 5
_TOP_OPS = 12
_TOP_KERNELS = 8
_SHOWN_SHARE = 0.005  # of the part's time; smaller clocks say nothing
_SHOWN_CULPRIT_NS = 1_000_000
_MANY_EPOCHS = 20_000  # read one by one in half a second
MANY_CALLS = 500_000  # recorded ones; their lines are told in a second


class Extent(enum.Enum):
    """How much of the account is shown. SHORT: sums only, of any length of recording; MOST: not what would have to read
    more than MANY_CALLS recorded calls; WHOLE: everything.
    """

    SHORT = "short"
    MOST = "most"
    WHOLE = "whole"


def account_text(
    reader: Reader,
    window: Window,
    *,
    pid: int | None = None,
    whole_stacks: bool = False,
    extent: Extent = Extent.WHOLE,
) -> Iterator[str]:
    """Lines of the account of a window, of all processes or one. whole_stacks: of the longest calls."""
    is_too_much = extent is Extent.MOST and reader.stored_calls() > MANY_CALLS
    is_short = extent is Extent.SHORT or is_too_much
    book = StackBook(reader)
    processes = [process for process in reader.processes() if pid is None or process.pid == pid]
    totals = reader.op_totals(window)
    clocks = {total.process: total for total in reader.clock_totals(window)}
    lanes = _lane_accounts(reader, window)
    epochs = _epochs_by_lane(reader, window) if lanes and not is_short else {}
    containers = {one.cgroup_id: one for one in reader.containers()}
    yield from _not_traced(reader, window)
    with_calls = {total.process for total in totals}
    shown = [process for process in processes if process.process in with_calls]
    if not shown:
        yield "No traced call was recorded in this window."
    for process in shown:
        mine = [total for total in totals if total.process == process.process]
        lane = main_lane(lanes, process.process)
        lines = _drain_lines(reader, window, epochs, lane, book) if lane and epochs else None
        yield from _process(reader, window, process, mine, clocks.get(process.process), lane, containers, lines)
        if not is_short:
            yield from _kernels(reader, window, process)
            yield from memory_lines(reader, window, process.process, book)
            yield from _lines_of_code(reader, window, process, mine, book, whole_stacks=whole_stacks)
            yield from _outside_calls(reader, window, process, book)
        yield ""
    yield from _others(reader, window, processes, with_calls, clocks, book)
    yield from _in_flight(reader, window, book)
    yield from coverage_lines(reader, window)
    yield from _losses(reader, window)
    if shown and is_too_much:
        yield f"Left out: lines of code and longest calls, of more than {format_count(MANY_CALLS)} recorded calls."
    if shown and is_short:
        yield "The whole account: --per-process"


def header_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Which time this is about, and what of it the size limit has taken."""
    yield f"{format_ns(window.duration_ns)} from {_moment(window.begin_ns)}"
    yield from _removed(reader, window)


def _not_traced(reader: Reader, window: Window) -> Iterator[str]:
    """Sources of which nothing can be in the recording: silence about them is not a zero."""
    reasons = {
        source: why
        for session in reader.sessions()
        if session.started_ns < window.end_ns and (session.stopped_ns or session.last_seen_ns) >= window.begin_ns
        for source, why in json.loads(session.not_traced).items()
    }
    for source, why in reasons.items():
        yield f"not traced: {_SOURCE_TEXTS.get(source, source)}: {why}"
    if reasons:
        yield ""


def _removed(reader: Reader, window: Window) -> Iterator[str]:
    """What the window would hold if the size limit had not taken it."""
    gone = [one for one in reader.removed() if one.until_ns > window.begin_ns]
    for kind, text in (("removed", "removed"), ("folded", "kept by the minute only")):
        mine = [one for one in gone if one.kind == kind]
        if mine:
            limit = format_bytes(max(mine, key=lambda one: one.noted_ns).max_db_bytes)
            parts = ", ".join(f"{one.name} before {_moment(one.until_ns)}" for one in mine)
            yield f"{text}, to stay below --max-db ({limit}): {parts}"


def _moment(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))


def _process(
    reader: Reader,
    window: Window,
    process: Process,
    totals: Sequence[OpTotals],
    clocks: ClockTotals | None,
    lane: LaneAccount | None,
    containers: Mapping[int, Container],
    lines: DrainLines | None,
) -> Iterator[str]:
    yield from _title(process, containers.get(process.cgroup_id or 0))
    if process.cmdline:
        yield f"  {process.cmdline[:160]}"
    culprits = [
        _placed(one, containers, process.cgroup_id or 0) for one in reader.culprits(window, process=process.process)
    ]
    if lane:
        yield from _device(lane, culprits, lines)
    else:
        yield "  The device was never drained in this window: its idleness is not proven."
    if clocks:
        yield from _threads(clocks, culprits)
    yield from _calls(totals)


def _lane_accounts(reader: Reader, window: Window) -> list[LaneAccount]:
    """From the epochs themselves; of very many from sums, which at the window's edges are true to within a commit."""
    sums = reader.lane_sums(window) or ()
    if sum(one.sums["epochs"] for one in sums) > _MANY_EPOCHS:
        return accounts_of_sums(sums)
    return lane_accounts(reader.epochs(window))


def _epochs_by_lane(reader: Reader, window: Window) -> dict[tuple[int, int, int], npt.NDArray[np.void]]:
    return {(lane.process, lane.device, lane.stream): lane.epochs for lane in reader.lanes(window)}


def _drain_lines(
    reader: Reader,
    window: Window,
    epochs: Mapping[tuple[int, int, int], npt.NDArray[np.void]],
    lane: LaneAccount,
    book: StackBook,
) -> DrainLines | None:
    own = epochs.get((lane.process, lane.device, lane.stream))
    if own is None:
        return None
    return drain_lines(own, lane, reader.drain_stacks(window, process=lane.process), book)


def _lines_of_code(
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
    book.read(one.stack_hash for one in times)
    known = {one.stack_hash: stack for one in times if (stack := book.of(one.stack_hash))}
    yield from line_cost_lines(line_costs(times, known), [one for one in totals if one.source in _CALL_SOURCES])
    yield from _worst(reader, window, process, book, whole_stacks=whole_stacks, has_stacks=bool(known))


def _outside_calls(reader: Reader, window: Window, process: Process, book: StackBook) -> Iterator[str]:
    """Nothing where the recording is too old to know, or without stacks."""
    if not reader.is_recorded("samples"):
        return
    samples = reader.samples(window, process=process.process)
    book.read(one.stack_hash for one in samples)
    known = {one.stack_hash: stack for one in samples if (stack := book.of(one.stack_hash))}
    yield from sample_lines(sampled_lines(samples, known))


def _title(process: Process, container: Container | None) -> Iterator[str]:
    identity = identity_text(process.rank, process.world_size, container.container_id if container else None)
    yield f"{process.name} [{process.pid}]" + (f", {identity}" if identity else "")
    if container and container.pod:
        yield f"  pod {container.pod}" + (f" in namespace {container.namespace}" if container.namespace else "")


def _placed(one: CulpritTotals, containers: Mapping[int, Container], own: int) -> CulpritTotals:
    """The culprit with its container in its name, if that is not the victim's own."""
    container = containers.get(one.culprit_cgroup_id)
    if container is None or not container.container_id or one.culprit_cgroup_id == own:
        return one
    place = f"pod {container.pod}" if container.pod else f"container {short_id(container.container_id)}"
    return replace(one, culprit_name=f"{one.culprit_name} in {place} ")


def _device(lane: LaneAccount, culprits: Sequence[CulpritTotals], lines: DrainLines | None) -> Iterator[str]:
    """Where the wall time between drains went."""
    wall = lane.wall_ns
    yield f"  {format_count(lane.epochs)} drains of {_device_name(lane.device)}, {format_ns(wall)} of wall time:"
    yield _share("device empty: nothing enqueued", lane.empty.total_ns, wall)
    yield from _part(lane.empty, wall)
    if lines:
        yield from lines.empty_lines()
    yield _share("device busy: first enqueue until ready", lane.busy_ns, wall)
    bounds = ""
    if lane.late_high_ns - lane.late_low_ns > wall * _SHOWN_SHARE:
        bounds = f"  (between {format_ns(lane.late_low_ns)} and {format_ns(lane.late_high_ns)})"
    yield _share("picked up late: ready, but the call had not returned", lane.late_ns, wall) + bounds
    if lines:
        yield from lines.late_lines()
    runnable = lane.drain.clock("runq") + lane.drain.clock("throttled") + lane.drain.clock("yielded")
    if lane.late_ns > wall * _SHOWN_SHARE and runnable:
        yield f"      in these calls the thread was runnable but not running for {format_ns(runnable)}"
        takers = _takers(culprits)
        if takers:
            yield f"      while this process waited for a CPU, others ran: {takers}"
    if lane.incomplete:
        yield f"    {lane.incomplete} of these epochs are incomplete: a scheduler event was missed and repaired"


def _device_name(device: int) -> str:
    return f"device {device}" if device >= 0 else "a device that was chosen before tracing"


def _part(part: Part, wall: int) -> Iterator[str]:
    for index, clock in enumerate(CLOCKS):
        if part.clocks_ns[index] > wall * _SHOWN_SHARE:
            yield f"      {format_ns(part.clocks_ns[index]):>10}  {CLOCK_TEXTS[clock]}"
    if part.unknown_ns > wall * _SHOWN_SHARE:
        yield f"      {format_ns(part.unknown_ns):>10}  handed over between threads, no single account"


def _threads(clocks: ClockTotals, culprits: Sequence[CulpritTotals]) -> Iterator[str]:
    total = clocks.clocks.total_ns
    yield (
        f"  its threads (up to {clocks.threads}), {format_ns(total)} summed, {format_count(clocks.switches)} switches, "
        f"{format_count(clocks.preemptions)} preemptions:"
    )
    for clock in CLOCKS:
        spent = getattr(clocks.clocks, f"{clock}_ns")
        if spent > total * _SHOWN_SHARE:
            yield _share(CLOCK_TEXTS[clock], spent, total)
    takers = _takers(culprits)
    if takers:
        yield f"    who ran while they were runnable: {takers}"


def _calls(totals: Sequence[OpTotals]) -> Iterator[str]:
    outermost = [total for total in totals if total.count]
    if not outermost:
        return
    yield (
        f"  {'call':30}{'count':>12}{'total':>11}{'p50':>10}{'p99':>10}{'max':>10}"
        f"{'on CPU':>8}{'runnable':>9}{'asleep':>8}{'errors':>8}"
    )
    for total in outermost[:_TOP_OPS]:
        yield (
            f"  {total.name:30}{format_count(total.count):>12}{format_ns(total.sum_ns):>11}"
            f"{_optional(total.p50_ns):>10}{_optional(total.p99_ns):>10}{format_ns(total.max_ns):>10}"
            f"{_clock_share(total, 'run'):>8}{_clock_share(total, 'runq', 'throttled', 'yielded'):>9}"
            f"{_clock_share(total, 'sleep', 'io', 'kernel_lock', 'stopped'):>8}{_count(total.errors):>8}"
        )
    if len(outermost) > _TOP_OPS:
        rest = outermost[_TOP_OPS:]
        count, spent = sum(one.count for one in rest), sum(one.sum_ns for one in rest)
        yield f"  {f'{len(rest)} other calls':30}{format_count(count):>12}{format_ns(spent):>11}"
    moved = sum(total.bytes for total in totals if "emcpy" in total.name and total.count)
    if moved:
        yield f"  copied: {format_bytes(moved)}"


def _kernels(reader: Reader, window: Window, process: Process) -> Iterator[str]:
    """What was launched most, and by whom; nothing where the recording is too old to know."""
    if not reader.is_recorded("kernel_launches"):
        return
    counts: Counter[tuple[str, str]] = Counter()
    for one in reader.kernel_launches(window, process=process.process):
        name = one.short_name or f"handle {one.function:#x}, without a name: made before tracing"
        counts[name, one.library] += one.count
    if counts:
        yield f"  {'launches':>12}  kernel"
    for (name, library), count in counts.most_common(_TOP_KERNELS):
        yield f"  {format_count(count):>12}  {name}" + (f"  from {library}" if library else "")
    if len(counts) > _TOP_KERNELS:
        rest = counts.total() - sum(count for _, count in counts.most_common(_TOP_KERNELS))
        yield f"  {format_count(rest):>12}  by {len(counts) - _TOP_KERNELS} other kernels"


def _worst(
    reader: Reader, window: Window, process: Process, book: StackBook, *, whole_stacks: bool, has_stacks: bool
) -> Iterator[str]:
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
        if has_stacks:
            yield from _stack(call.stack_hash, book, is_whole=whole_stacks)


def _stack(stack_hash: int, book: StackBook, *, is_whole: bool) -> Iterator[str]:
    stack = book.of(stack_hash)
    if stack is None:
        yield "      at a place that is not known: " + ("its stack was lost" if stack_hash else "no stack was taken")
    elif is_whole:
        yield from (f"      {line}" for line in stack_lines(stack))
    else:
        yield f"      at {where_text(stack)}"


def _call(call: Call) -> str:
    parts = [
        f"    {time.strftime('%H:%M:%S', time.localtime(call.start_ns / 1e9))}.{call.start_ns // 10**6 % 1000:03}",
        f"{call.name} {format_ns(call.duration_ns)} by {call.comm}[{call.tid}]",
    ]
    if call.caller_library:
        parts.append(f"from {call.caller_library}")
    if call.clocks:
        parts.append("= " + " + ".join(_clocks(call.clocks)))
    if call.culprit_ns:
        parts.append(f"longest taker {call.culprit_name}[{call.culprit_pid}] {format_ns(call.culprit_ns)}")
    if call.waker_kind and call.waker_kind != "none":
        waker = f"{call.waker_name}[{call.waker_tid}]" if call.waker_kind == "thread" else call.waker_kind
        parts.append(f"woken by {waker}")
    if call.ret_code:
        parts.append(f"returned {call.ret_code}")
    return "  ".join(parts)


def _clocks(clocks: Clocks) -> list[str]:
    values = [(clock, getattr(clocks, f"{clock}_ns")) for clock in CLOCKS]
    return [f"{format_ns(ns)} {clock}" for clock, ns in values if ns] or ["0 ns"]


def _others(
    reader: Reader,
    window: Window,
    processes: Sequence[Process],
    shown: set[int],
    clocks: dict[int, ClockTotals],
    book: StackBook,
) -> Iterator[str]:
    """Processes without a traced call, such as data-loading workers: what their threads did."""
    quiet = [process for process in processes if process.process not in shown and process.process in clocks]
    if quiet:
        yield "Other traced processes:"
    for process in quiet:
        total = clocks[process.process].clocks
        values = [(clock, getattr(total, f"{clock}_ns")) for clock in CLOCKS]
        spent = ", ".join(f"{clock} {format_ns(ns)}" for clock, ns in values if ns > total.total_ns * _SHOWN_SHARE)
        yield f"  {process.name} [{process.pid}], child of {process.parent_pid}: {spent}"
        yield from (f"  {line}" for line in _outside_calls(reader, window, process, book))
    if quiet:
        yield ""


def _in_flight(reader: Reader, window: Window, book: StackBook) -> Iterator[str]:
    for call in reader.in_flight(window):
        yield f"Open for {format_ns(call.time_ns - call.since_ns)} when last seen: {call.name} of {call.pid}/{call.tid}"
        if call.stack_hash:
            yield from (line[4:] for line in _stack(call.stack_hash, book, is_whole=True))


def _losses(reader: Reader, window: Window) -> Iterator[str]:
    losses = reader.losses(window)
    if not losses:
        yield "Nothing was lost while recording."
        return
    yield "Lost or repaired while recording:"
    for loss in losses:
        amount = format_ns(loss.count) if loss.counter.endswith("_ns") else format_count(loss.count)
        yield f"  {amount:>12}  {loss.reason or loss.counter}"


def _takers(culprits: Sequence[CulpritTotals]) -> str:
    """Who ran instead, processes of one name together, most time first."""
    spent: Counter[str] = Counter()
    pids: dict[str, dict[int, None]] = {}
    for one in culprits:
        name = "idle CPU" if one.culprit_pid == 0 else one.culprit_name
        spent[name] += one.ns
        if one.culprit_pid > 0:
            pids.setdefault(name, {})[one.culprit_pid] = None
    shown = [(name, ns) for name, ns in spent.most_common(_TOP_CULPRITS) if ns > _SHOWN_CULPRIT_NS]
    return ", ".join(f"{name}{_pid_list(list(pids.get(name, ())))} {format_ns(ns)}" for name, ns in shown)


def _pid_list(pids: Sequence[int]) -> str:
    if not pids:
        return ""
    more = f" and {len(pids) - _TOP_PIDS} more" if len(pids) > _TOP_PIDS else ""
    return f"[{','.join(map(str, pids[:_TOP_PIDS]))}{more}]"


def _share(text: str, part: int, whole: int) -> str:
    return f"    {format_ns(part):>10} {format_percent(part / whole if whole else 0):>7}  {text}"


def _count(value: int | None) -> str:
    return "-" if value is None else format_count(value)


def _optional(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)


def _clock_share(total: OpTotals, *names: str) -> str:
    if total.clocks is None or not total.sum_ns:
        return "-"
    return format_percent(sum(getattr(total.clocks, f"{name}_ns") for name in names) / total.sum_ns)
