"""An incident as titled sections of lines; the one place of this report that knows what an incident holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.diagnose.model import Affected, Culprit, FindingKind, Fix, Impact, Incident, Link
from ingero.events import STATE_TEXTS
from ingero.units import format_count, format_counted, format_moment, format_ns, format_percent, format_time_of_day

_MOST_LINES = 12
_PARTS = {
    "empty": "GPU idle (nothing queued)",
    "enqueue": "while launching",
    "device": "GPU execution",
    "late": "sync return delay",
    "host": "host time of the step",
    "blocked": "blocked for the GPU",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One part. lines: at least one, deeper ones indented by two spaces; of a fix these are its commands."""

    key: str
    title: str
    lines: tuple[str, ...]


def title_of(incident: Incident) -> str:
    """Severity, cause and number."""
    kind = "steady-state bottleneck" if incident.kind is FindingKind.BOTTLENECK else incident.kind.value
    on_node = f" on {incident.node}" if incident.node else ""
    return f"{incident.severity.name} {incident.cause}{on_node} ({kind} {incident.number})"


def headline_of(incident: Incident) -> str:
    """One sentence that can be forwarded."""
    return incident.summary


def when_of(incident: Incident) -> str:
    """From, to and how long."""
    if incident.end_ns is None:
        return f"since {format_moment(incident.start_ns)}, ongoing"
    lasted_ns = incident.end_ns - incident.start_ns
    begin, end = format_moment(incident.start_ns, of_ns=lasted_ns), format_time_of_day(incident.end_ns, of_ns=lasted_ns)
    return f"{begin} to {end} ({format_ns(lasted_ns)})" if lasted_ns > 0 else f"at {begin}"


def sections(incident: Incident) -> Iterator[Section]:
    """Everything below the headline that there is something to say of, but the timeline, which is a picture."""
    parts = (
        Section("impact", "Impact", tuple(_impact(incident))),
        Section("where", "Where", (str(incident.line),) if incident.line else ()),
        Section("fix", "Fix", tuple(_fixes(incident.fixes))),
        Section("breakdown", "Breakdown", tuple(_breakdown(incident))),
        Section("affected", "Affected", tuple(_affected(incident.affected))),
        Section("culprits", "Culprits", tuple(_culprits(incident.culprits))),
        Section("evidence", "Evidence", tuple(_evidence(incident.chain))),
    )
    return (one for one in parts if one.lines)


def _impact(incident: Incident) -> Iterator[str]:
    if incident.lost_ns:
        is_higher = incident.peak_ratio > incident.lost_ratio
        peak = f" (peak {format_percent(incident.peak_ratio)} in one second)" if is_higher else ""
        lost = f"{format_ns(incident.lost_ns)} lost, {format_percent(incident.lost_ratio)} of wall time{peak}"
        yield f"{lost}; {format_percent(incident.explained_ratio)} of it explained"
    if incident.impact:
        yield from _noticed(incident.impact)


def _noticed(impact: Impact) -> Iterator[str]:
    now, baseline = impact.intervals_per_s, impact.usual_intervals_per_s
    rate = f"{now:.3g} {impact.interval}s/s"
    if baseline:
        rate += f" (baseline {baseline:.3g}, {_change(now, baseline)})"
    p99 = f"{impact.interval} p99 {format_ns(impact.p99_ns)}"
    if impact.usual_p99_ns:
        p99 += f" (baseline {format_ns(impact.usual_p99_ns)}, {_change(impact.p99_ns, impact.usual_p99_ns)})"
    yield f"{rate}; {p99}"
    share = f"involuntary off-CPU time {format_percent(impact.involuntary_ratio)}"
    if impact.usual_involuntary_ratio is not None:
        share += f" (baseline {format_percent(impact.usual_involuntary_ratio)})"
    yield share + (f"; {format_count(impact.preemptions)} involuntary context switches" if impact.preemptions else "")


def _fixes(fixes: Sequence[Fix]) -> Iterator[str]:
    for fix in fixes[:_MOST_LINES]:
        yield f"{fix.text[:1].upper()}{fix.text[1:]}{':' if fix.command else ''}"
        yield from (f"  {line}" for line in fix.command.splitlines())


def _breakdown(incident: Incident) -> Iterator[str]:
    total = sum(incident.breakdown.values())
    for name, ns in sorted(incident.breakdown.items(), key=lambda item: -item[1])[:_MOST_LINES]:
        part, _, state = name.partition(".")
        place = _PARTS.get(part, part)
        place = f"{place}: {STATE_TEXTS.get(state, state)}" if state not in (part, "") else place
        yield f"{format_ns(ns)} ({format_percent(ns / max(total, 1))}) {place}"


def _affected(affected: Sequence[Affected]) -> Iterator[str]:
    for one in affected[:_MOST_LINES]:
        rank = f" rank {one.rank}" if one.rank is not None else ""
        lost = f", {format_ns(one.lost_ns)} lost" if one.lost_ns else ""
        yield f"{one.name} [{one.pid}]{rank}{_place(one.container, one.job)}{lost}"
    yield from _more(affected, "process")


def _culprits(culprits: Sequence[Culprit]) -> Iterator[str]:
    for one in culprits[:_MOST_LINES]:
        used = [format_ns(one.lost_ns)] if one.lost_ns else []
        used += [f"{format_count(one.switches)} context switches"] if one.switches else []
        yield ", ".join([f"{one.name} [{one.pid}]{_place(one.container, one.job)}", *used])
    yield from _more(culprits, "culprit")


def _evidence(chain: Sequence[Link]) -> Iterator[str]:
    for link in chain[:_MOST_LINES]:
        times = f": {format_ns(link.seen_ns)}" if link.seen_ns else ""
        times += f" (expected {format_ns(link.expected_ns)})" if link.expected_ns is not None else ""
        yield f"{link.text[:1].upper()}{link.text[1:]}{times}"
        if link.structure:
            yield f"  Source: {link.structure}"
        if link.order:
            yield f"  Order: {link.order}"


def _more(of: Sequence[object], noun: str) -> Iterator[str]:
    if len(of) > _MOST_LINES:
        yield f"and {format_counted(len(of) - _MOST_LINES, f'more {noun}')}"


def _place(container: str, job: str) -> str:
    return (f" in {container}" if container else "") + (f" of {job}" if job else "")


def _change(now: float, baseline: float) -> str:
    return f"{100 * (now / baseline - 1):+.0f}%"
