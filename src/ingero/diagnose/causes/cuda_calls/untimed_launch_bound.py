"""As launch-bound while launches are only counted: how long they take is known by the samples inside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingero.diagnose.cases.call_growth import growth
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import HostStays, beyond, count_of, is_more
from ingero.diagnose.causes.cuda_calls import launch_bound
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.incidents.blind_spots import was_traced
from ingero.diagnose.samples.stack_samples import Spent, Stay
from ingero.ops import Kind
from ingero.store.records import Window
from ingero.units import format_number

CAUSE = launch_bound.CAUSE
_TIMES = ("launch_times",)
_LAUNCHES = re.compile(r"cu(da)?(Launch|GraphLaunch)\w*$")
_CUDA = re.compile(r"lib(cuda|cudart)\b")


def find(case: Case) -> Iterator[Finding]:
    """On-CPU time inside launches that have no durations, beyond that of the reference."""
    if case.kind is not FindingKind.INCIDENT or was_traced(case, _TIMES):
        return
    stays = case.host_stays
    now, before = _inside(stays.now), _inside(stays.before)
    grown = _grown(case, HostStays(now, before, stays.scale))
    if grown is None or not grown.is_enough:
        return
    claims = case.take((Part.IDLE, Part.LAUNCH), ("run",), grown.at_most_ns * case.scale)
    lost = sum(claims.values())
    if not lost:
        return
    calls = growth(case, Kind.LAUNCH)
    is_as_many = calls and calls.count <= 1.1 * calls.usual_count
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


def _inside(found: Sequence[Stay]) -> list[Stay]:
    """Those in a launch: where it has no duration, a call is open without anybody knowing."""
    return [
        one
        for one in found
        if one.stack and any(_CUDA.match(place.file) and _LAUNCHES.match(place.symbol) for place in one.stack.native)
    ]


def _grown(case: Case, stays: HostStays) -> Spent | None:
    """Beyond the reference: by its samples, or where launches had durations there, by these."""
    grown = beyond(stays.now, stays.before, stays.scale)
    if grown is None or not is_more(count_of(stays.now), count_of(stays.before), stays.scale):
        return None
    if not all(_is_timed(case, one) for one in case.baselines):
        return grown
    calls = growth(case, Kind.LAUNCH)
    usual_ns = sum(one.usual_ns for one in calls.changes) * len(case.sync_intervals) if calls else 0.0
    ns = grown.ns - usual_ns
    return Spent(ns=ns, count=round(grown.count * ns / grown.ns), line=grown.line) if ns > 0 else None


def _is_timed(case: Case, window: Window) -> bool:
    """Whether launches had durations in a time range of the reference."""
    return not case.evidence.gaps.missing_ns(frozenset(_TIMES), (window,))


RULE = Rule(
    cause=CAUSE,
    title="kernels were launched too slowly for the GPU, by samples",
    order=56,
    needs=("sync_intervals", "stack_samples", "launches"),
    shows="on-CPU samples inside launches beyond the baseline, while durations of launches are not traced",
    limits="a launch shorter than a tick is only seen by chance: many samples are needed; native stacks of every place "
    "are copied once, so that the first seconds may have none",
    find=find,
)
