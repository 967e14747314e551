"""A profile as text: steps, GPU idle time by owner, waits, kernels, and the collectives of several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingero.diagnose.profile.collectives import Collective, arrived_last_counts, wait_ns_by_process
from ingero.diagnose.profile.report import ProfileReport, Profiles
from ingero.diagnose.profile.steps import MIN_STEPS, StepUse
from ingero.diagnose.profile.words import BLOCKED_TEXTS, IDLE_TEXTS, percent, process_label
from ingero.units import format_count, format_counted, format_ns

_MAX_STEPS = 20
_MAX_PROCESSES = 4  # of a job of many ranks the verdicts say enough; --pid N shows one
_MAX_COLLECTIVES = 20
_TOP_WAITS = 3
_TOP_KERNELS = 5
_BAR = 20  # columns
_SHOWN_RATIO = 0.002  # of the time that shares are of
_NAME = 60


def profile_lines(found: Profiles, *, pid: int | None = None) -> Iterator[str]:
    """The processes, or one, and their collectives."""
    shown = [report for report in found.reports if pid is None or report.process.pid == pid]
    for report in shown[:_MAX_PROCESSES]:
        yield from _process(report)
        yield ""
    if len(shown) > _MAX_PROCESSES:
        yield f"and {format_counted(len(shown) - _MAX_PROCESSES, 'process')} more (--pid N shows one, --json all)"
        yield ""
    if found.collectives:
        yield from _collectives(found)
        yield ""


def _process(report: ProfileReport) -> Iterator[str]:
    main = f", {percent(report.main_stream_busy_ratio)} on its main stream {report.stream}"
    yield f"{process_label(report.process)}, GPU {report.device}, measured by the profiler:"
    yield f"  GPU busy {percent(report.busy_ratio)} of {format_ns(report.wall_ns)}{main}"
    if report.collective_wait_ns >= _SHOWN_RATIO * report.wall_ns:
        share = percent(report.collective_wait_ns / report.wall_ns)
        yield f"  of that {share} in collectives that waited for other ranks ({format_ns(report.collective_wait_ns)})"
    if report.data_loading_ratio:
        yield f"  data loading {percent(report.data_loading_ratio)} of wall time"
    if 0 < len(report.steps) <= _MAX_STEPS:
        yield from _steps(report.steps)
    yield from _idle(report)
    yield from _waits(report)
    yield from _kernels(report)


def _steps(steps: Sequence[StepUse]) -> Iterator[str]:
    yield f"  {'step':>6}{'time':>10}{'GPU busy':>10}{'idle':>7}{'blocked':>9}"
    for number, step in enumerate(steps, 1):
        shares = (step.busy_ns / step.step_ns, step.idle_ns / step.step_ns, step.blocked_ns / step.step_ns)
        busy, idle, blocked = map(percent, shares)
        slow = "" if step.is_typical else "  slow, not counted below"
        yield f"  {number:>6}{format_ns(step.step_ns):>10}{busy:>10}{idle:>7}{blocked:>9}{slow}"


def _idle(report: ProfileReport) -> Iterator[str]:
    total = sum(share.idle_ns for share in report.idle)
    of = "the steps" if len(report.steps) >= MIN_STEPS else "the time covered"
    yield f"  GPU idle {percent(1 - report.judged_busy_ratio)} of {of} ({format_ns(total)}):"
    for share in sorted(report.idle, key=lambda one: -one.idle_ns):
        if share.ratio >= _SHOWN_RATIO:
            bar = "#" * max(1, round(_BAR * share.idle_ns / max(total, 1)))
            yield f"    {format_ns(share.idle_ns):>9} {percent(share.ratio):>5} {bar:<{_BAR}} {IDLE_TEXTS[share.owner]}"
    for place in report.host_places[:_TOP_WAITS]:
        if place.idle_ns >= _SHOWN_RATIO * report.judged_ns:
            yield f"    {format_ns(place.idle_ns):>9} of it {place.text} ({format_counted(place.gaps, 'gap')})"


def _waits(report: ProfileReport) -> Iterator[str]:
    shown = [one for one in report.waits[:_TOP_WAITS] if one.waited_ns >= _SHOWN_RATIO * report.wall_ns]
    if shown:
        yield "  launching threads blocked until the GPU was done:"
    for wait in shown:
        share = percent(wait.waited_ns / report.wall_ns)
        how = f"{BLOCKED_TEXTS[wait.kind]}, {format_counted(wait.count, 'call')}"
        yield f"    {format_ns(wait.waited_ns):>9} {share:>5} {wait.text} ({how})"


def _kernels(report: ProfileReport) -> Iterator[str]:
    if report.kernels:
        yield f"  {'GPU time':>11}{'count':>10}  kernel"
    for kernel in report.kernels[:_TOP_KERNELS]:
        yield f"  {format_ns(kernel.busy_ns):>11}{format_count(kernel.count):>10}  {kernel.name[:_NAME]}"


def _collectives(found: Profiles) -> Iterator[str]:
    names = {report.process.process: _rank(report) for report in found.reports}
    yield f"{format_counted(len(found.collectives), 'collective')} that several ranks took part in:"
    if len(found.collectives) <= _MAX_COLLECTIVES:
        yield f"  {'':>4}  {'':14}{'came last':>12}{'the first waited':>18}"
        yield from (_collective(collective, names) for collective in found.collectives)
    counts, waits = arrived_last_counts(found.collectives), wait_ns_by_process(found.collectives)
    last = (f"{names[process]} {count}" for process, count in sorted(counts.items(), key=lambda item: -item[1]))
    yield f"  last to come: {', '.join(last) or 'nobody'}, of {format_count(len(found.collectives))}"
    yield "  waited in all: " + ", ".join(f"{names[process]} {format_ns(ns)}" for process, ns in waits.items())


def _collective(collective: Collective, names: Mapping[int, str]) -> str:
    last = names[collective.last] if collective.last is not None else "together"
    return f"  {collective.number:>4}  {collective.name:14}{last:>12}{format_ns(collective.wait_ns):>18}"


def _rank(report: ProfileReport) -> str:
    rank = report.process.rank
    return f"rank {rank}" if rank is not None else f"pid {report.process.pid}"
