"""The time breakdown of a recording as text: by process GPU time, thread-state time and calls; and dropped data."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ingero.diagnose.accounting import StreamBreakdown, breakdowns_of_sums, main_stream, stream_breakdowns
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import Utilization, utilization_of
from ingero.diagnose.steps.gpu_idle import gpu_idle
from ingero.diagnose.steps.main_stream import judged_alone
from ingero.diagnose.steps.process_steps import ProcessSteps
from ingero.identity import identity_text
from ingero.ops import is_launch
from ingero.serve.text.call_lines import call_lines, code_lines, copy_lines, in_flight_lines, kernel_lines
from ingero.serve.text.coverage import coverage_lines, unseen_ratio
from ingero.serve.text.gap_lines import drop_lines, not_traced_lines, pruned_lines
from ingero.serve.text.memory_lines import memory_lines
from ingero.serve.text.sample_lines import sample_lines, sampled_lines
from ingero.serve.text.state_lines import device_lines, placed, quiet_text, step_lines, thread_lines
from ingero.serve.text.sync_lines import SyncLines, sync_lines
from ingero.step_counts import How
from ingero.store.call_stacks import StackBook
from ingero.store.errors import make_copies
from ingero.store.reader import Reader
from ingero.store.records import Container, OpTotals, Process, ThreadStateTotals, Window
from ingero.units import format_count, format_moment, format_ns

_MIN_COVERED_RATIO = 0.8  # of a process's lifetime: from here on its breakdown is compared with NVML's utilization
_MANY_SYNC_INTERVALS = 20_000  # read one by one in half a second
_MAX_OTHERS = 8  # processes without a traced call that are shown in full,
_MAX_NAMES = 16  # and of the rest by name
MANY_CALLS = 500_000  # recorded calls; resolving their lines takes a second


class Extent(enum.Enum):
    """How much of the breakdown is shown. SHORT: sums only, for any recording length; MOST: not what would have to read
    more than MANY_CALLS recorded calls; WHOLE: everything.
    """

    SHORT = "short"
    MOST = "most"
    WHOLE = "whole"


def breakdown_text(
    reader: Reader,
    window: Window,
    *,
    pid: int | None = None,
    whole_stacks: bool = False,
    extent: Extent = Extent.WHOLE,
    evidence: Evidence | None = None,
) -> Iterator[str]:
    """Lines of the time breakdown of a window, of all processes or one. whole_stacks: show those of the longest calls.

    evidence: of that window, if it was read already.
    """
    evidence = evidence or Evidence(reader, window)
    is_too_much = extent is Extent.MOST and reader.stored_calls() > MANY_CALLS
    is_short = extent is Extent.SHORT or is_too_much
    book = StackBook(reader)
    processes = [process for process in reader.processes() if pid is None or process.pid == pid]
    totals = reader.op_totals(window)
    clocks = {total.process: total for total in reader.thread_state_totals(window)}
    gpu_streams = _judged(reader, window, _stream_breakdowns(reader, window), totals)
    sync_intervals = _sync_intervals_by_gpu_stream(reader, window) if gpu_streams and not is_short else {}
    containers = {container.cgroup_id: container for container in reader.containers()}
    yield from not_traced_lines(reader, window)
    with_calls = {total.process for total in totals}
    shown = [process for process in processes if process.process in with_calls]
    if not shown:
        yield "No traced call was recorded in this window."
    for process in shown:
        mine = [total for total in totals if total.process == process.process]
        gpu_stream = main_stream(gpu_streams, process.process)
        lines = _sync_lines(reader, window, sync_intervals, gpu_stream, book) if gpu_stream and sync_intervals else None
        yield from _process(evidence, process, mine, clocks.get(process.process), gpu_stream, containers, lines)
        if not is_short:
            yield from kernel_lines(reader, window, process)
            yield from memory_lines(reader, window, process.process, book)
            yield from code_lines(reader, window, process, mine, book, whole_stacks=whole_stacks)
            yield from _outside_calls(reader, window, process, book)
        yield ""
    yield from _others(reader, window, processes, with_calls, clocks, book)
    yield from in_flight_lines(reader, window, book, whole_stacks=whole_stacks)
    yield from coverage_lines(reader, window)
    yield from drop_lines(reader, window)
    if shown and is_too_much:
        yield f"Left out: lines of code and longest calls (more than {format_count(MANY_CALLS)} recorded calls)."
    if shown and is_short:
        yield "Full breakdown: --per-process"


def header_lines(reader: Reader, window: Window) -> Iterator[str]:
    """The time range covered, and what is missing in it: a missing log, or rows pruned by the size limit."""
    yield f"{format_ns(window.duration_ns)} from {format_moment(window.begin_ns, of_ns=window.duration_ns)}"
    if reader.missing_end:
        yield f"The file lacks {reader.missing_end}"
        yield f"  {make_copies()}"
    yield from pruned_lines(reader, window)


def _process(
    evidence: Evidence,
    process: Process,
    totals: Sequence[OpTotals],
    clocks: ThreadStateTotals | None,
    gpu_stream: StreamBreakdown | None,
    containers: Mapping[int, Container],
    lines: SyncLines | None,
) -> Iterator[str]:
    reader, window = evidence.reader, evidence.window
    yield from _title(process, containers.get(process.cgroup_id or 0))
    if process.cmdline:
        yield f"  {process.cmdline[:160]}"
    culprits = [
        placed(culprit, containers, process.cgroup_id or 0)
        for culprit in reader.culprits(window, process=process.process)
    ]
    steps = evidence.steps.get(process.process)
    if steps and steps.gpu_stream and steps.gpu_stream.is_steps:
        yield from _of_steps(evidence, process, steps)
    elif gpu_stream:
        utilization = _utilization(evidence, process, gpu_stream)
        yield from device_lines(gpu_stream, culprits, lines, utilization, unseen_ratio(reader, window))
        if steps and steps.how is not How.SYNC:
            yield f"    steps: {steps.text}"
        yield from _idle(evidence, process)
    elif reader.has_gpu_activities(window, process=process.process):
        yield "  GPU times are measured by the profiler, see above."
    else:
        yield "  The stream with most launches was never synced in this window: GPU idle time is unknown."
    if clocks:
        yield from thread_lines(clocks, culprits)
    yield from call_lines(totals)
    yield from copy_lines(totals, reader.copy_shares((window,), process=process.process))


def _of_steps(evidence: Evidence, process: Process, steps: ProcessSteps) -> Iterator[str]:
    totals = next((one for one in evidence.reader.step_totals(evidence.window) if one.process == process.process), None)
    if totals:
        yield from step_lines(totals, steps)
        yield from _idle(evidence, process, unknown="GPU idle time within steps is unknown")


def _idle(evidence: Evidence, process: Process, *, unknown: str = "") -> Iterator[str]:
    """The least and most GPU idle time; if unknown, the words for that, if there are any."""
    words = gpu_idle(evidence, process).words if process.process in evidence.main_streams else ""
    if words or unknown:
        yield f"    {words or unknown}"


def _utilization(evidence: Evidence, process: Process, gpu_stream: StreamBreakdown) -> Utilization | None:
    """Utilization of the process's GPU over its lifetime; None if the stream's breakdown covers too little of it."""
    window = evidence.window
    end_ns = min(window.end_ns, process.exit_ns or window.end_ns)
    lived = Window(begin_ns=max(window.begin_ns, process.start_ns), end_ns=end_ns)
    if gpu_stream.wall_ns < _MIN_COVERED_RATIO * lived.duration_ns:
        return None
    return utilization_of(evidence, process, gpu_stream.device, (lived,))


def _stream_breakdowns(reader: Reader, window: Window) -> list[StreamBreakdown]:
    """Breakdowns of the streams from their sync intervals; if very many, from sums exact to a commit at the edges."""
    sums = reader.gpu_stream_sums(window) or ()
    if sum(one.sums["sync_intervals"] for one in sums) > _MANY_SYNC_INTERVALS:
        return breakdowns_of_sums(sums)
    return stream_breakdowns(reader.sync_intervals(window))


def _judged(
    reader: Reader, window: Window, gpu_streams: list[StreamBreakdown], totals: Sequence[OpTotals]
) -> list[StreamBreakdown]:
    """The streams that can be judged; they are read in full only where launches are missing from their sums."""
    launches, missing = Counter[int](), Counter[int]()
    for total in totals:
        launches[total.process] += total.count if is_launch(total.source, total.op) else 0
    missing.update(launches)
    for gpu_stream in gpu_streams:
        missing[gpu_stream.process] -= gpu_stream.launches
    if all(missing[gpu_stream.process] <= gpu_stream.launches for gpu_stream in gpu_streams):
        return gpu_streams
    judged = judged_alone(reader.gpu_streams(window), lambda process: launches[process])
    keys = {(one.process, one.device, one.stream) for one in judged}
    return [
        gpu_stream for gpu_stream in gpu_streams if (gpu_stream.process, gpu_stream.device, gpu_stream.stream) in keys
    ]


def _sync_intervals_by_gpu_stream(reader: Reader, window: Window) -> dict[tuple[int, int, int], npt.NDArray[np.void]]:
    return {
        (gpu_stream.process, gpu_stream.device, gpu_stream.stream): gpu_stream.sync_intervals
        for gpu_stream in reader.gpu_streams(window)
    }


def _sync_lines(
    reader: Reader,
    window: Window,
    sync_intervals: Mapping[tuple[int, int, int], npt.NDArray[np.void]],
    gpu_stream: StreamBreakdown,
    book: StackBook,
) -> SyncLines | None:
    own = sync_intervals.get((gpu_stream.process, gpu_stream.device, gpu_stream.stream))
    if own is None:
        return None
    return sync_lines(own, gpu_stream, reader.sync_stacks(window, process=gpu_stream.process), book)


def _outside_calls(reader: Reader, window: Window, process: Process, book: StackBook) -> Iterator[str]:
    """Lines about time outside calls; none where the recording is too old for it, or has no stacks."""
    if not reader.is_recorded("stack_samples"):
        return
    samples = reader.samples(window, process=process.process)
    book.read(sample.stack_hash for sample in samples)
    known = {sample.stack_hash: stack for sample in samples if (stack := book.of(sample.stack_hash))}
    yield from sample_lines(sampled_lines(samples, known))


def _title(process: Process, container: Container | None) -> Iterator[str]:
    job = (process.scheduler, process.job, process.job_step)
    identity = identity_text(process.rank, process.world_size, container.container_id if container else None, job)
    yield f"{process.name} [{process.pid}]" + (f", {identity}" if identity else "")
    if container and container.pod:
        owner = f", made by {container.owner}" if container.owner else ""
        yield f"  pod {container.pod}" + (f" in namespace {container.namespace}" if container.namespace else "") + owner
    if process.rank is None and process.rank_source:
        yield f"  rank not known: {process.rank_source}"


def _others(
    reader: Reader,
    window: Window,
    processes: Sequence[Process],
    shown: set[int],
    clocks: dict[int, ThreadStateTotals],
    book: StackBook,
) -> Iterator[str]:
    """Processes without a traced call, such as data-loading workers: the states of their threads.

    Those that ran most in full. A compiler's pool of workers is asleep, one for each CPU.
    """
    quiet = [process for process in processes if process.process not in shown and process.process in clocks]
    quiet.sort(key=lambda one: -(clocks[one.process].clocks.total_ns - clocks[one.process].clocks.sleep_ns))
    if quiet:
        yield "Other traced processes:"
    for process in quiet[:_MAX_OTHERS]:
        spent = quiet_text(clocks[process.process].clocks)
        yield f"  {process.name} [{process.pid}], child of {process.parent_pid}: {spent}"
        yield from (f"  {line}" for line in _outside_calls(reader, window, process, book))
    rest = quiet[_MAX_OTHERS:]
    if rest:
        names = ", ".join(f"{one.name} [{one.pid}]" for one in rest[:_MAX_NAMES]) + (
            ", ..." if rest[_MAX_NAMES:] else ""
        )
        yield f"  {format_count(len(rest))} more that ran less: {names}"
    if quiet:
        yield ""
