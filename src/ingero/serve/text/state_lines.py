"""Time breakdown of a process's GPU and threads, and the processes that ran while they waited for a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.accounting import PartBreakdown, StreamBreakdown
from ingero.diagnose.evidence.nvml_utilization import Utilization
from ingero.diagnose.profile.words import BLOCKED_TEXTS
from ingero.diagnose.steps.process_steps import ProcessSteps
from ingero.events import BLOCKED_KINDS, STATE_TEXTS, STATES
from ingero.identity import short_id
from ingero.serve.text.sync_lines import SyncLines
from ingero.step_counts import How
from ingero.store.records import Clocks, Container, CulpritTotals, StepTotals, ThreadStateTotals
from ingero.units import format_count, format_counted, format_ns, format_percent

_TOP_CULPRITS = 5
_TOP_PIDS = 4
_SHOWN_SHARE = 0.005  # of the part's time; smaller states are not shown
_MOSTLY = 0.5
_SEEN = ("GPU idle: nothing queued", "GPU busy: work queued or running (first launch to completion)")
_UNSEEN = ("host time, from one GPU sync to the next", "GPU sync wait: until the GPU was done")
_SHOWN_CULPRIT_NS = 1_000_000


def device_lines(
    gpu_stream: StreamBreakdown,
    culprits: Sequence[CulpritTotals],
    lines: SyncLines | None,
    utilization: Utilization | None = None,
    unseen_ratio: float = 0.0,
) -> Iterator[str]:
    """Breakdown of the wall time between GPU syncs. utilization: of the GPU in the same seconds.

    unseen_ratio: of the window, in which launches or copies were not traced, so that idle and busy are not known.
    """
    wall = gpu_stream.wall_ns
    empty, busy = _UNSEEN if unseen_ratio > _MOSTLY else _SEEN
    intervals = format_counted(gpu_stream.sync_intervals, How.SYNC.noun)
    yield f"  {_device_name(gpu_stream.device)}: {intervals} in {format_ns(wall)} of wall time"
    yield _share(empty, gpu_stream.idle.total_ns, wall)
    yield from _part(gpu_stream.idle, wall)
    if lines:
        yield from lines.empty_lines()
    yield _share(busy, gpu_stream.busy_ns, wall)
    if utilization:
        yield f"      {utilization.words(gpu_stream.busy_ns / max(wall, 1))}"
    in_io = gpu_stream.sync.in_state("io")
    if in_io > wall * _SHOWN_SHARE:
        spent = format_ns(in_io)
        yield f"      inside these calls the thread was in I/O wait for {spent}, which is no wait for the GPU"
    bounds = ""
    if gpu_stream.return_delay_high_ns - gpu_stream.return_delay_low_ns > wall * _SHOWN_SHARE:
        bounds = (
            f"  (between {format_ns(gpu_stream.return_delay_low_ns)} and {format_ns(gpu_stream.return_delay_high_ns)})"
        )
    yield _share("sync return delay: GPU done, call not yet returned", gpu_stream.return_delay_ns, wall) + bounds
    if lines:
        yield from lines.late_lines()
    runnable = (
        gpu_stream.sync.in_state("runq") + gpu_stream.sync.in_state("throttled") + gpu_stream.sync.in_state("yielded")
    )
    if gpu_stream.return_delay_ns > wall * _SHOWN_SHARE and runnable:
        yield f"      inside these calls the thread was runnable but not running for {format_ns(runnable)}"
        cpu_users = _cpu_users(culprits)
        if cpu_users:
            yield f"      CPUs it waited for ran: {cpu_users}"
    if unseen_ratio:
        counted = (
            "" if unseen_ratio > _MOSTLY else "; in that time, host time counts as idle, and only the sync wait as busy"
        )
        share = format_percent(unseen_ratio)
        yield f"    GPU idle time is unknown: not all launches and copies were traced for {share} of the time{counted}"
    if gpu_stream.incomplete:
        yield (
            f"    {gpu_stream.incomplete} of these intervals are incomplete "
            "(a scheduler event was missed, and corrected)"
        )


def step_lines(totals: StepTotals, steps: ProcessSteps) -> Iterator[str]:
    """Breakdown of the wall time of steps found by repetition: the host's own time, and time blocked on the GPU."""
    wall, blocked_ns = totals.wall_ns, sum(totals.blocked_ns)
    marker = f", from one {totals.marker} to the next" if totals.marker else ""
    yield f"  {steps.text}{marker}, in {format_ns(wall)} of wall time"
    yield _share("host time of the step", max(wall - blocked_ns, 0), wall)
    for clock in STATES:
        spent = getattr(totals.clocks, f"{clock}_ns")
        if spent > wall * _SHOWN_SHARE:
            yield f"      {format_ns(spent):>10}  {STATE_TEXTS[clock]}"
    yield _share("blocked on the GPU", blocked_ns, wall)
    for kind, ns in zip(BLOCKED_KINDS, totals.blocked_ns, strict=True):
        if ns > wall * _SHOWN_SHARE:
            yield f"      {format_ns(ns):>10}  {BLOCKED_TEXTS[kind]}"
    for count, why in ((totals.unseen, "were not traced"), (totals.untimed - totals.unseen, "had no durations")):
        if count > 0:
            of_them = f"launches of {format_count(count)} of them {why}"
            yield f"    {of_them}: time blocked on a full launch queue is unknown"
    if totals.incomplete:
        why = "a scheduler event was missed, and corrected"
        yield f"    {format_count(totals.incomplete)} of them are incomplete ({why})"


def thread_lines(clocks: ThreadStateTotals, culprits: Sequence[CulpritTotals]) -> Iterator[str]:
    """Thread-state time, summed over the threads."""
    total = clocks.clocks.total_ns
    yield (
        f"  threads (up to {clocks.threads}): {format_ns(total)} summed; {format_count(clocks.switches)} context "
        f"switches, {format_count(clocks.involuntary_switches)} of them involuntary"
    )
    for clock in STATES:
        spent = getattr(clocks.clocks, f"{clock}_ns")
        if spent > total * _SHOWN_SHARE:
            yield _share(STATE_TEXTS[clock], spent, total)
    cpu_users = _cpu_users(culprits)
    if cpu_users:
        yield f"    CPUs they waited for ran: {cpu_users}"


def quiet_text(clocks: Clocks) -> str:
    """The thread-state time of a process that made no traced call."""
    values = [(clock, getattr(clocks, f"{clock}_ns")) for clock in STATES]
    return ", ".join(
        f"{STATE_TEXTS[clock]} {format_ns(ns)}" for clock, ns in values if ns > clocks.total_ns * _SHOWN_SHARE
    )


def placed(culprit: CulpritTotals, containers: Mapping[int, Container], own: int) -> CulpritTotals:
    """The culprit with its container in its name, if that is not the affected process's own."""
    container = containers.get(culprit.culprit_cgroup_id)
    if container is None or not container.container_id or culprit.culprit_cgroup_id == own:
        return culprit
    place = f"pod {container.pod}" if container.pod else f"container {short_id(container.container_id)}"
    return replace(culprit, culprit_name=f"{culprit.culprit_name} in {place}")


def _device_name(device: int) -> str:
    return f"GPU {device}" if device >= 0 else "a GPU selected before tracing began"


def _part(part: PartBreakdown, wall: int) -> Iterator[str]:
    for index, clock in enumerate(STATES):
        if part.states_ns[index] > wall * _SHOWN_SHARE:
            yield f"      {format_ns(part.states_ns[index]):>10}  {STATE_TEXTS[clock]}"
    if part.unknown_ns > wall * _SHOWN_SHARE:
        yield f"      {format_ns(part.unknown_ns):>10}  unattributed: launch and sync on different threads"


def _cpu_users(culprits: Sequence[CulpritTotals]) -> str:
    """The processes that ran instead, those of one name together, most time first."""
    spent: Counter[str] = Counter()
    pids: dict[str, dict[int, None]] = {}
    for culprit in culprits:
        name = "idle CPU" if culprit.culprit_pid == 0 else culprit.culprit_name
        spent[name] += culprit.ns
        if culprit.culprit_pid > 0:
            pids.setdefault(name, {})[culprit.culprit_pid] = None
    shown = [(name, ns) for name, ns in spent.most_common(_TOP_CULPRITS) if ns > _SHOWN_CULPRIT_NS]
    return ", ".join(f"{name}{_pid_list(list(pids.get(name, ())))} {format_ns(ns)}" for name, ns in shown)


def _pid_list(pids: Sequence[int]) -> str:
    if not pids:
        return ""
    more = f" and {len(pids) - _TOP_PIDS} more" if len(pids) > _TOP_PIDS else ""
    return f" [{', '.join(map(str, pids[:_TOP_PIDS]))}{more}]"


def _share(text: str, part: int, whole: int) -> str:
    return f"    {format_ns(part):>10} {format_percent(part / whole if whole else 0):>7}  {text}"
