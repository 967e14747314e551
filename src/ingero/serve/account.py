"""The account of a recording as text: per process the device's time, the clocks, the calls; and the losses."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ingero.diagnose.accounting import LaneAccount, accounts_of_sums, lane_accounts, main_lane
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.gpu_idle import gpu_idle
from ingero.diagnose.main_stream import judged_alone
from ingero.diagnose.step_lanes import ProcessSteps
from ingero.diagnose.utilization import Utilization, utilization_of
from ingero.identity import identity_text
from ingero.ops import is_launch
from ingero.serve.call_lines import call_lines, code_lines, copy_lines, kernel_lines, open_call_lines
from ingero.serve.clock_lines import device_lines, placed, quiet_text, step_lines, thread_lines
from ingero.serve.coverage import coverage_lines, unseen_ratio
from ingero.serve.drain_lines import DrainLines, drain_lines
from ingero.serve.gap_lines import loss_lines, not_traced_lines, removed_lines
from ingero.serve.memory_lines import memory_lines
from ingero.serve.sample_lines import sample_lines, sampled_lines
from ingero.step_counts import How
from ingero.store.call_stacks import StackBook
from ingero.store.errors import make_copies
from ingero.store.reader import Reader
from ingero.store.records import ClockTotals, Container, OpTotals, Process, Window
from ingero.units import format_count, format_moment, format_ns

_MOST_OF_IT = 0.8  # of the time that a process lived, before its account is compared with what others say of it
_MANY_EPOCHS = 20_000  # read one by one in half a second
_MOST_OTHERS = 8  # processes without a traced call that are shown in full,
_MOST_NAMES = 16  # and of the rest by name
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
    evidence: Evidence | None = None,
) -> Iterator[str]:
    """Lines of the account of a window, of all processes or one. whole_stacks: of the longest calls.

    evidence: of that window, where somebody has read it already.
    """
    evidence = evidence or Evidence(reader, window)
    is_too_much = extent is Extent.MOST and reader.stored_calls() > MANY_CALLS
    is_short = extent is Extent.SHORT or is_too_much
    book = StackBook(reader)
    processes = [process for process in reader.processes() if pid is None or process.pid == pid]
    totals = reader.op_totals(window)
    clocks = {total.process: total for total in reader.clock_totals(window)}
    lanes = _judged(reader, window, _lane_accounts(reader, window), totals)
    epochs = _epochs_by_lane(reader, window) if lanes and not is_short else {}
    containers = {one.cgroup_id: one for one in reader.containers()}
    yield from not_traced_lines(reader, window)
    with_calls = {total.process for total in totals}
    shown = [process for process in processes if process.process in with_calls]
    if not shown:
        yield "No traced call was recorded in this window."
    for process in shown:
        mine = [total for total in totals if total.process == process.process]
        lane = main_lane(lanes, process.process)
        lines = _drain_lines(reader, window, epochs, lane, book) if lane and epochs else None
        yield from _process(evidence, process, mine, clocks.get(process.process), lane, containers, lines)
        if not is_short:
            yield from kernel_lines(reader, window, process)
            yield from memory_lines(reader, window, process.process, book)
            yield from code_lines(reader, window, process, mine, book, whole_stacks=whole_stacks)
            yield from _outside_calls(reader, window, process, book)
        yield ""
    yield from _others(reader, window, processes, with_calls, clocks, book)
    yield from open_call_lines(reader, window, book, whole_stacks=whole_stacks)
    yield from coverage_lines(reader, window)
    yield from loss_lines(reader, window)
    if shown and is_too_much:
        yield f"Left out: lines of code and longest calls, of more than {format_count(MANY_CALLS)} recorded calls."
    if shown and is_short:
        yield "The whole account: --per-process"


def header_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Which time this is about, and what of it is not there: without its log, or taken by the size limit."""
    yield f"{format_ns(window.duration_ns)} from {format_moment(window.begin_ns, of_ns=window.duration_ns)}"
    if reader.missing_end:
        yield f"The file lacks {reader.missing_end}"
        yield f"  {make_copies()}"
    yield from removed_lines(reader, window)


def _process(
    evidence: Evidence,
    process: Process,
    totals: Sequence[OpTotals],
    clocks: ClockTotals | None,
    lane: LaneAccount | None,
    containers: Mapping[int, Container],
    lines: DrainLines | None,
) -> Iterator[str]:
    reader, window = evidence.reader, evidence.window
    yield from _title(process, containers.get(process.cgroup_id or 0))
    if process.cmdline:
        yield f"  {process.cmdline[:160]}"
    culprits = [
        placed(one, containers, process.cgroup_id or 0) for one in reader.culprits(window, process=process.process)
    ]
    steps = evidence.steps.get(process.process)
    if steps and steps.lane and steps.lane.is_steps:
        yield from _of_steps(evidence, process, steps)
    elif lane:
        utilization = _utilization(evidence, process, lane)
        yield from device_lines(lane, culprits, lines, utilization, unseen_ratio(reader, window))
        if steps and steps.how is not How.SYNC:
            yield f"    its steps: {steps.text}"
        yield from _idle(evidence, process)
    elif reader.has_gpu_activities(window, process=process.process):
        yield "  The GPU's times are the profiler's, see above."
    else:
        yield "  The stream with most launches was never synced in this window: GPU idle is not known."
    if clocks:
        yield from thread_lines(clocks, culprits)
    yield from call_lines(totals)
    yield from copy_lines(totals, reader.copy_shares((window,), process=process.process))


def _of_steps(evidence: Evidence, process: Process, steps: ProcessSteps) -> Iterator[str]:
    totals = next((one for one in evidence.reader.step_totals(evidence.window) if one.process == process.process), None)
    if totals:
        yield from step_lines(totals, steps)
        yield from _idle(evidence, process, unknown="GPU idle is not known within steps")


def _idle(evidence: Evidence, process: Process, *, unknown: str = "") -> Iterator[str]:
    """How long the GPU was idle at least and at most; where nothing is known of it, that, if there are words for it."""
    words = gpu_idle(evidence, process).words if process.process in evidence.main_lanes else ""
    if words or unknown:
        yield f"    {words or unknown}"


def _utilization(evidence: Evidence, process: Process, lane: LaneAccount) -> Utilization | None:
    """Of its GPU, while the process lived; None where the lane's account is not about most of that time."""
    window = evidence.window
    end_ns = min(window.end_ns, process.exit_ns or window.end_ns)
    lived = Window(begin_ns=max(window.begin_ns, process.start_ns), end_ns=end_ns)
    if lane.wall_ns < _MOST_OF_IT * lived.duration_ns:
        return None
    return utilization_of(evidence, process, lane.device, (lived,))


def _lane_accounts(reader: Reader, window: Window) -> list[LaneAccount]:
    """From the epochs themselves; of very many from sums, which at the window's edges are true to within a commit."""
    sums = reader.lane_sums(window) or ()
    if sum(one.sums["epochs"] for one in sums) > _MANY_EPOCHS:
        return accounts_of_sums(sums)
    return lane_accounts(reader.epochs(window))


def _judged(reader: Reader, window: Window, lanes: list[LaneAccount], totals: Sequence[OpTotals]) -> list[LaneAccount]:
    """Those that can be judged: the lanes themselves are read only where launches are missing from their sums."""
    launches, missing = Counter[int](), Counter[int]()
    for total in totals:
        launches[total.process] += total.count if is_launch(total.source, total.op) else 0
    missing.update(launches)
    for lane in lanes:
        missing[lane.process] -= lane.launches
    if all(missing[lane.process] <= lane.launches for lane in lanes):
        return lanes
    judged = judged_alone(reader.lanes(window), lambda process: launches[process])
    keys = {(one.process, one.device, one.stream) for one in judged}
    return [lane for lane in lanes if (lane.process, lane.device, lane.stream) in keys]


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


def _outside_calls(reader: Reader, window: Window, process: Process, book: StackBook) -> Iterator[str]:
    """Nothing where the recording is too old to know, or without stacks."""
    if not reader.is_recorded("samples"):
        return
    samples = reader.samples(window, process=process.process)
    book.read(one.stack_hash for one in samples)
    known = {one.stack_hash: stack for one in samples if (stack := book.of(one.stack_hash))}
    yield from sample_lines(sampled_lines(samples, known))


def _title(process: Process, container: Container | None) -> Iterator[str]:
    job = (process.scheduler, process.job, process.job_step)
    identity = identity_text(process.rank, process.world_size, container.container_id if container else None, job)
    yield f"{process.name} [{process.pid}]" + (f", {identity}" if identity else "")
    if container and container.pod:
        owner = f", made by {container.owner}" if container.owner else ""
        yield f"  pod {container.pod}" + (f" in namespace {container.namespace}" if container.namespace else "") + owner
    if process.rank is None and process.rank_source:
        yield f"  its rank is not known: {process.rank_source}"


def _others(
    reader: Reader,
    window: Window,
    processes: Sequence[Process],
    shown: set[int],
    clocks: dict[int, ClockTotals],
    book: StackBook,
) -> Iterator[str]:
    """Processes without a traced call, such as data-loading workers: what their threads did.

    Those that ran most in full. A compiler's pool of workers is asleep, one for each CPU.
    """
    quiet = [process for process in processes if process.process not in shown and process.process in clocks]
    quiet.sort(key=lambda one: -(clocks[one.process].clocks.total_ns - clocks[one.process].clocks.sleep_ns))
    if quiet:
        yield "Other traced processes:"
    for process in quiet[:_MOST_OTHERS]:
        spent = quiet_text(clocks[process.process].clocks)
        yield f"  {process.name} [{process.pid}], child of {process.parent_pid}: {spent}"
        yield from (f"  {line}" for line in _outside_calls(reader, window, process, book))
    rest = quiet[_MOST_OTHERS:]
    if rest:
        names = ", ".join(f"{one.name} [{one.pid}]" for one in rest[:_MOST_NAMES]) + (
            ", ..." if rest[_MOST_NAMES:] else ""
        )
        yield f"  {format_count(len(rest))} that ran less: {names}"
    if quiet:
        yield ""
