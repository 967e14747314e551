"""The parts of an incident as text, in the order and by the names of its JSON (`diagnose/incidents/incident_json.py`).

`explain`, MCP and whatever else shows an incident to people take these sections; they differ in how they set them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingero.diagnose.incidents.incident_json import breakdown_of
from ingero.units import (
    format_count,
    format_counted,
    format_moment,
    format_ns,
    format_number,
    format_percent,
    format_time_of_day,
)

if TYPE_CHECKING:
    from ingero.diagnose.findings import Affected, Contributing, Culprit, Fact, Fix, Impact, Incident, Link, Moment

_BAR = 20  # columns
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TOP_BUCKETS = 5
_TOP_CULPRITS = 6
_SHOWN_SHARE = 0.02  # of the incident's lost time
_PLAIN_WORD = re.compile(r"[a-z]+(?![\w.:/-])(?! [\[(])")  # not cudaMalloc, train.py, pt_data_worker or python [4000]
_RATES = {"sync interval": "syncs/s"}  # where it is not the noun's own plural


@dataclass(frozen=True, slots=True)
class Section:
    """One part. key: its key in JSON; lines: at least one, deeper ones indented by two spaces.

    is_own: nothing in it was written by a traced program.
    """

    key: str
    title: str
    lines: tuple[str, ...]
    is_own: bool = False


def title_line(incident: Incident) -> str:
    """Severity, cause, number, and when it was: "HIGH  cpu-contention  [incident 1]  2025-10-09 08:53:24 to ..."."""
    on_node = f" on {incident.node}" if incident.node else ""
    kind = "steady-state bottleneck" if incident.kind.value == "bottleneck" else incident.kind.value
    return f"{incident.severity.name}  {incident.cause}{on_node}  [{kind} {incident.number}]  {when_text(incident)}"


def when_text(incident: Incident) -> str:
    """From, to and how long; "ongoing" where it has not ended."""
    if incident.end_ns is None:
        return f"since {format_moment(incident.start_ns)}, ongoing"
    lasted_ns = incident.end_ns - incident.start_ns
    begin, end = format_moment(incident.start_ns, of_ns=lasted_ns), format_time_of_day(incident.end_ns, of_ns=lasted_ns)
    return f"{begin} to {end} ({format_ns(lasted_ns)})" if lasted_ns > 0 else begin


def sections(incident: Incident) -> Iterator[Section]:
    """All non-empty sections below the headline."""
    parts = (
        Section("impact", "Impact", tuple(_impact(incident)), is_own=True),
        Section("where", "Where", (incident.where.text,)),
        Section("fix", "Fix", tuple(_fixes(incident.fixes))),
        Section("breakdown", "Breakdown", tuple(_breakdown(incident)), is_own=True),
        Section("affected", "Affected", tuple(_affected(incident.affected))),
        Section("culprits", "Culprits", tuple(_culprits(incident.culprits))),
        Section("contributing", "Contributing", tuple(map(_contributing, incident.contributing))),
        Section("evidence", "Evidence", tuple(_evidence(incident.chain))),
        Section("timeline", "Timeline", tuple(_timeline(incident.timeline)), is_own=True),
    )
    return (part for part in parts if part.lines)


def details(incident: Incident) -> Section | None:
    """The numbers behind the evidence; None where there are none."""
    lines = tuple(f"{name}: {_fact(value)}" for name, value in incident.evidence.items() if value is not None)
    return Section("details", "Details", lines) if lines else None


def impact_lines(impact: Impact) -> Iterator[str]:
    """Throughput and p99 against the baseline, involuntary off-CPU time, context switches."""
    rate = f"{format_number(impact.per_s)} {_RATES.get(impact.judged_by, f'{impact.judged_by}s/s')}"
    if impact.baseline_per_s:
        rate += f" (baseline {format_number(impact.baseline_per_s)}, {_change(impact.per_s, impact.baseline_per_s)})"
    p99 = f"{impact.judged_by} p99 {format_ns(impact.p99_ns)}"
    if impact.baseline_p99_ns:
        change = _change(impact.p99_ns, impact.baseline_p99_ns)
        p99 += f" (baseline {format_ns(impact.baseline_p99_ns)}, {change})"
    yield f"{rate}; {p99}"
    share = f"involuntary off-CPU time {format_percent(impact.involuntary_off_cpu_ratio)}"
    if impact.baseline_involuntary_off_cpu_ratio is not None:
        share += f" (baseline {format_percent(impact.baseline_involuntary_off_cpu_ratio)})"
    if impact.context_switches:
        share += f"; {_count(impact.context_switches, 'context switch')}"
    if impact.involuntary_context_switches:
        share += f", {format_count(impact.involuntary_context_switches)} of them involuntary"
    yield share


def timeline_line(moments: Sequence[Moment]) -> str:
    """The share of time lost over time as a row of blocks."""
    bars = "".join(_BLOCKS[min(len(_BLOCKS) - 1, -(-int(moment.lost_ratio * 1000) * 8 // 1000))] for moment in moments)
    first, last = moments[0], moments[-1]
    each = format_ns(first.end_ns - first.begin_ns)
    begin, end = (format_time_of_day(at, of_ns=last.end_ns - first.begin_ns) for at in (first.begin_ns, last.end_ns))
    return f"{begin} |{bars}| {end}  time lost, {each} per column"


def _impact(incident: Incident) -> Iterator[str]:
    if incident.lost_ns:
        peak = incident.peak_ratio > incident.lost_ratio
        most = f" (peak {format_percent(incident.peak_ratio)} in one second)" if peak else ""
        lost = (
            f"{format_ns(incident.lost_ns)} lost, {format_percent(incident.lost_ratio)} {incident.of_wall_time}{most}"
        )
        yield f"{lost}; {format_percent(incident.explained_ratio)} of it explained"
    if incident.impact:
        yield from impact_lines(incident.impact)


def _fixes(fixes: Iterable[Fix]) -> Iterator[str]:
    for fix in fixes:
        yield f"{_sentence(fix.text)}{':' if fix.command else ''}"
        if fix.command:
            yield from (f"  {line}" for line in fix.command.splitlines())


def _breakdown(incident: Incident) -> Iterator[str]:
    """The lost time that the cause explains, by part of the step and state of the critical-path thread."""
    for one in breakdown_of(incident.breakdown)[:_TOP_BUCKETS]:
        if one.share_ratio >= _SHOWN_SHARE:
            bar = "#" * max(1, round(_BAR * one.share_ratio))
            yield f"{format_ns(one.lost_ns):<8} {bar:<{_BAR}}  {one.text}"


def _affected(affected: Sequence[Affected]) -> Iterator[str]:
    """The affected processes, if several: the headline names the only one."""
    for one in affected if len(affected) > 1 else ():
        rank = f" rank {one.rank}" if one.rank is not None else ""
        lost = f"  {format_ns(one.lost_ns)}" if one.lost_ns else ""
        yield f"{one.name} [{one.pid}]{rank}{_place(one.container, one.job)}{lost}"


def _culprits(culprits: Sequence[Culprit]) -> Iterator[str]:
    for one in culprits[:_TOP_CULPRITS]:
        used = [format_ns(one.lost_ns)] if one.lost_ns else []
        used += [_count(one.switches, "context switch")] if one.switches else []
        yield f"{one.name} [{one.pid}]{_place(one.container, one.job)}  {', '.join(used)}".rstrip()
    if rest := culprits[_TOP_CULPRITS:]:
        yield f"and {format_counted(len(rest), 'more culprit')}, {format_ns(sum(one.lost_ns for one in rest))}"


def _contributing(contribution: Contributing) -> str:
    share = format_percent(contribution.share_ratio)
    lost = format_ns(contribution.lost_ns)
    return f"{contribution.cause}  {lost}, {share} of the lost time: {contribution.headline}"


def _evidence(chain: Iterable[Link]) -> Iterator[str]:
    for link in chain:
        times = f": {format_ns(link.seen_ns)}" if link.seen_ns else ""
        if link.expected_ns is not None:
            times += f" (expected {format_ns(link.expected_ns)})"
        yield f"{_sentence(link.text)}{times}"
        if link.structure:
            yield f"  Source: {link.structure}"
        if link.order:
            yield f"  Order: {link.order}"


def _timeline(moments: Sequence[Moment]) -> Iterator[str]:
    if moments:
        yield timeline_line(moments)


def _place(container: str, job: str) -> str:
    return (f" in {container}" if container else "") + (f" of {job}" if job else "")


def _fact(value: Fact) -> str:
    return format_number(value, 4) if isinstance(value, float) else str(value)


def _count(count: int, noun: str) -> str:
    return format_counted(count, noun) if count == 1 else f"{format_count(count)} {noun}es"


def _sentence(text: str) -> str:
    """Capitalized, unless it begins with the name of a call or of a process."""
    return text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) else text


def _change(now: float, baseline: float) -> str:
    return f"{100 * (now / baseline - 1):+.0f}%"
