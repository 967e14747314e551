"""Launch-bound where launches are only counted: their duration is known from samples inside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingero.diagnose.cases.call_growth import grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import HostSampleGroups, growth_beyond, is_more, sample_count
from ingero.diagnose.causes.cuda_calls import launch_bound
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.incidents.blind_spots import was_traced
from ingero.diagnose.samples.stack_samples import SampledTime, SampleGroup
from ingero.ops import Kind
from ingero.store.records import Window
from ingero.units import format_number

CAUSE = launch_bound.CAUSE
_LAUNCH_TIMES = ("launch_times",)
_LAUNCH_SYMBOLS = re.compile(r"cu(da)?(Launch|GraphLaunch)\w*$")
_CUDA_LIBRARIES = re.compile(r"lib(cuda|cudart)\b")


def explain(case: Case) -> Iterator[Finding]:
    """On-CPU time inside untimed launches, beyond the baseline."""
    if case.kind is not FindingKind.INCIDENT or was_traced(case, _LAUNCH_TIMES):
        return
    groups = case.host_sample_groups
    now, before = _samples_in_launches(groups.now), _samples_in_launches(groups.before)
    grown = _grown_in_launches(case, HostSampleGroups(now, before, groups.scale))
    if grown is None or not grown.is_enough:
        return
    claims = case.claimable((Part.IDLE, Part.LAUNCH), ("run",), grown.at_most_ns * case.scale)
    lost = sum(claims.values())
    if not lost:
        return
    calls = grown_calls(case, Kind.LAUNCH)
    is_as_many = calls and calls.count <= 1.1 * calls.baseline_count
    often = f"; {format_number(calls.count)} per {case.noun}, as many as before" if calls and is_as_many else ""
    yield Finding(
        cause=CAUSE,
        resource="launches",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because kernels were launched too slowly to keep the GPU busy: "
        f"it was running inside launches, by {grown.count} samples{often}",
        claims=claims,
        line=grown.line,
        chain=(
            Link(
                text="the launching thread was inside launches",
                seen_ns=int(grown.ns),
                structure="samples with the driver's launch in their native stack: durations were not taken then",
                order="each launch returned before the GPU could begin with it",
            ),
        ),
        fixes=(
            Fix(text="launch fewer, larger kernels", command="torch.compile(model, mode='reduce-overhead')"),
            Fix(text="or use CUDA graphs for the repeated part"),
        ),
        evidence={"samples": grown.count},
    )


def _samples_in_launches(groups: Sequence[SampleGroup]) -> list[SampleGroup]:
    """Sample groups with a launch on their native stack; an untimed call is not known to be in flight."""
    return [
        group
        for group in groups
        if group.stack
        and any(
            _CUDA_LIBRARIES.match(place.file) and _LAUNCH_SYMBOLS.match(place.symbol) for place in group.stack.native
        )
    ]


def _grown_in_launches(case: Case, groups: HostSampleGroups) -> SampledTime | None:
    """Time in launches beyond the baseline, from samples or, where launches were timed there, from durations."""
    grown = growth_beyond(groups.now, groups.before, groups.scale)
    if grown is None or not is_more(sample_count(groups.now), sample_count(groups.before), groups.scale):
        return None
    if not all(_had_launch_times(case, window) for window in case.baseline_windows):
        return grown
    calls = grown_calls(case, Kind.LAUNCH)
    launch_calls_ns = sum(change.baseline_ns for change in calls.changes) * len(case.sync_intervals) if calls else 0.0
    ns = grown.ns - launch_calls_ns
    return SampledTime(ns=ns, count=round(grown.count * ns / grown.ns), line=grown.line) if ns > 0 else None


def _had_launch_times(case: Case, window: Window) -> bool:
    """Whether launches were timed in a baseline window."""
    return not case.evidence.gaps.missing_ns(frozenset(_LAUNCH_TIMES), (window,))


RULE = Rule(
    cause=CAUSE,
    title="kernels were launched too slowly for the GPU, by samples",
    order=56,
    needs=("sync_intervals", "stack_samples", "launches"),
    shows="on-CPU samples inside launches beyond the baseline, while durations of launches are not traced",
    limits="a launch shorter than a tick is only seen by chance: many samples are needed; native stacks of every place "
    "are copied once, so that the first seconds may have none",
    explain=explain,
)
