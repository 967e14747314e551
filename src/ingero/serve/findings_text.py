"""A diagnosis as text: incidents worst first, what was said of each process, and what could not be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ingero.diagnose.model import (
    Affected,
    Culprit,
    Diagnosis,
    FindingKind,
    Impact,
    Incident,
    Link,
    Moment,
    ProcessVerdict,
)
from ingero.diagnose.profile.words import NOT_IN_A_PROFILE, WHY_NOT_IN_A_PROFILE
from ingero.events import STATE_TEXTS
from ingero.store.spans import joined
from ingero.units import format_count, format_counted, format_moment, format_ns, format_percent, format_time_of_day

_BAR = 20  # columns
_BLOCKS = " ▁▂▃▄▅▆▇█"
_TOP_BUCKETS = 5
_TOP_CULPRITS = 6
_SEE_BELOW = "not traced, see below"  # where the sources of which that is said with one reason follow
_TOP_NOT_EVALUATED = 6  # reasons; the rest is one line
_MOST_ALIKE = 4  # incidents of one cause in processes of one name; of short-lived ones there may be hundreds
_MOST_VERDICTS = 40
_SHOWN_SHARE = 0.02  # of the incident's loss
_KINDS = {
    FindingKind.INCIDENT: "incident",
    FindingKind.BOTTLENECK: "bottleneck, for as long as it was seen",
    FindingKind.EVENT: "event",
}
_PARTS = {
    "idle": "nothing enqueued",
    "launch": "while enqueuing",
    "gpu": "GPU",
    "return_delay": "returned late",
    "host": "host time of the step",
    "blocked": "blocked for the GPU",
}


def verdict_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The headline, the incidents with their proof, and the verdict of each process."""
    yield headline(diagnosis)
    yield ""
    for alike in _alike(diagnosis.incidents):
        for incident in alike[:_MOST_ALIKE]:
            yield from incident_lines(incident)
            yield ""
        if rest := alike[_MOST_ALIKE:]:
            yield _more_alike(rest)
            yield ""
    shown = sorted(diagnosis.verdicts, key=lambda one: not one.has_incident)[:_MOST_VERDICTS]
    for verdict in diagnosis.verdicts:
        if verdict in shown:
            yield _verdict(verdict)
    if len(diagnosis.verdicts) > len(shown):
        yield f"and {format_count(len(diagnosis.verdicts) - len(shown))} more processes (--json has all of them)"
    if diagnosis.verdicts:
        yield ""


def _alike(incidents: Sequence[Incident]) -> list[list[Incident]]:
    """Those of one cause in processes of one name; groups and incidents in the order in which they came."""
    groups: dict[tuple[str, FindingKind, tuple[str, ...]], list[Incident]] = {}
    for one in incidents:
        groups.setdefault((one.cause, one.kind, _names(one)), []).append(one)
    return list(groups.values())


def _names(incident: Incident) -> tuple[str, ...]:
    """Of whom it is about, each once; an end that came too early leaves none."""
    return tuple(sorted({one.name for one in (incident.affected or incident.culprits) if one.name}))


def _more_alike(rest: Sequence[Incident]) -> str:
    first = rest[0]
    whose = f" of {', '.join(_names(first))}" if _names(first) else ""
    whose += f" on {', '.join(nodes)}" if (nodes := sorted({one.node for one in rest if one.node})) else ""
    lost_ns = max(one.lost_ns for one in rest)
    each = f", which lost up to {format_ns(lost_ns)} each" if lost_ns else ""
    begin_ns, end_ns = min(one.start_ns for one in rest), max(one.end_ns or one.start_ns for one in rest)
    begin, end = (format_moment(at, of_ns=end_ns - begin_ns) for at in (begin_ns, end_ns))
    return (
        f"and {format_count(len(rest))} more like it: {first.cause}{whose}{each} ({begin} to {end}); --pid N shows one "
        "process, --json all"
    )


def headline(diagnosis: Diagnosis) -> str:
    """How many of which severity, or why silence is no all-clear."""
    if diagnosis.incidents:
        count = len(diagnosis.incidents)
        severities = sorted({one.severity for one in diagnosis.incidents}, reverse=True)
        parts = (f"{sum(one.severity is s for one in diagnosis.incidents)} {s.name}" for s in severities)
        return f"{count} incident{'s' if count > 1 else ''} found ({', '.join(parts)})"
    if diagnosis.verdicts:
        unseen_ns = unseen_for_ns(diagnosis)
        but = f" in what was traced: for {format_ns(unseen_ns)} not every cause could be looked at" if unseen_ns else ""
        return f"No incident found{but}."
    return "No verdict: the recording holds no sync intervals or steps, so that no lost time can be proven."


def unseen_for_ns(diagnosis: Diagnosis) -> int:
    """For how long some cause could not be looked at that could at other times."""
    time_ranges = joined(part for one in diagnosis.not_evaluated for part in one.time_ranges)
    return sum(one.duration_ns for one in time_ranges)


def incident_lines(incident: Incident) -> Iterator[str]:
    """One incident: what happened, when, what it cost, who did it, how that is known, and what to do."""
    where = f" on {incident.node}" if incident.node else ""
    yield f"{incident.severity.name}  {incident.cause}{where}  [{_KINDS[incident.kind]} {incident.number}]"
    yield f"  {incident.summary}"
    yield f"  {_when(incident)}"
    if incident.lost_ns:
        yield _cost(incident)
    if incident.impact:
        yield from impact_lines(incident.impact)
    yield from timeline_lines(incident.timeline)
    yield from _breakdown(incident)
    yield from _all_affected(incident.affected)
    yield from _culprits(incident.culprits)
    if incident.line:
        yield f"  line: {incident.line}"
    yield from _chain(incident.chain)
    for fix in incident.fixes:
        yield f"  try: {fix.text}"
        if fix.command:
            yield f"       {fix.command}"


def not_looked_at_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Causes that could not be evaluated, by reason: silence about them is no all-clear."""
    if diagnosis.profiles:
        yield from _not_in_a_profile(diagnosis)
        return
    by_reason: dict[str, list[str]] = {}
    shared = [why for why, sources in Counter(diagnosis.not_traced.values()).items() if sources > 1]
    for one in diagnosis.not_evaluated:
        is_shared = any(one.text.endswith(f"not traced: {why}") for why in shared)
        by_reason.setdefault(_SEE_BELOW if is_shared else one.text, []).append(one.cause)
    if by_reason:
        yield "Not evaluated, so that silence about these is no all-clear:"
    for reason, causes in list(by_reason.items())[:_TOP_NOT_EVALUATED]:
        yield f"  {', '.join(causes)} ({reason})"
    rest = list(by_reason.values())[_TOP_NOT_EVALUATED:]
    if rest:
        yield f"  and {sum(map(len, rest))} more causes"


def _not_in_a_profile(diagnosis: Diagnosis) -> Iterator[str]:
    """Said once: there is one reason for nearly all of them."""
    for reason in dict.fromkeys(one.text for one in diagnosis.not_evaluated):
        count = format_counted(sum(one.text == reason for one in diagnosis.not_evaluated), "cause")
        text = WHY_NOT_IN_A_PROFILE if reason == NOT_IN_A_PROFILE else reason
        yield f"Not checked: {text} ({count}, --json lists them)"


def impact_lines(impact: Impact) -> Iterator[str]:
    """Throughput and p99 against the reference; time off the CPU against the thread's will."""
    now, usual = impact.intervals_per_s, impact.usual_intervals_per_s
    rate = f"  {impact.interval}s a second {now:.3g}"
    if usual:
        rate += f" (usually {usual:.3g}, {_change(now, usual)})"
    p99 = f"p99 {format_ns(impact.p99_ns)}"
    if impact.usual_p99_ns:
        p99 += f" (usually {format_ns(impact.usual_p99_ns)}, {_change(impact.p99_ns, impact.usual_p99_ns)})"
    yield f"{rate}, {p99}"
    share = f"  off the CPU against its will {format_percent(impact.involuntary_ratio)} of its time"
    if impact.usual_involuntary_ratio is not None:
        share += f" (usually {format_percent(impact.usual_involuntary_ratio)})"
    yield share + (f", {format_count(impact.preemptions)} preemptions" if impact.preemptions else "")


def timeline_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """The lost share over time as a row of blocks."""
    if not moments:
        return
    bars = "".join(_BLOCKS[min(len(_BLOCKS) - 1, -(-int(one.lost_ratio * 1000) * 8 // 1000))] for one in moments)
    first, last = moments[0], moments[-1]
    each = format_ns(first.end_ns - first.begin_ns)
    begin, end = (format_time_of_day(at, of_ns=last.end_ns - first.begin_ns) for at in (first.begin_ns, last.end_ns))
    yield f"  {begin} |{bars}| {end}  lost share, {each} each"


def _cost(incident: Incident) -> str:
    parts = [f"lost {format_ns(incident.lost_ns)}, {format_percent(incident.lost_ratio)} of its time"]
    if incident.peak_ratio > incident.lost_ratio:
        parts.append(f"{format_percent(incident.peak_ratio)} in its worst second")
    parts.append(f"{format_percent(incident.explained_ratio)} of the loss explained")
    return f"  {'; '.join(parts)}"


def _when(incident: Incident) -> str:
    if incident.end_ns is None:
        return f"since {format_moment(incident.start_ns)}, and it goes on"
    lasted_ns = incident.end_ns - incident.start_ns
    begin, end = format_moment(incident.start_ns, of_ns=lasted_ns), format_time_of_day(incident.end_ns, of_ns=lasted_ns)
    return f"{begin} to {end} ({format_ns(lasted_ns)})" if lasted_ns > 0 else f"at {begin}"


def _breakdown(incident: Incident) -> Iterator[str]:
    """The lost time that it owns, by part of the sync interval and state of the thread on the path."""
    total = sum(incident.breakdown.values())
    shown = sorted(incident.breakdown.items(), key=lambda item: -item[1])[:_TOP_BUCKETS]
    for name, ns in shown:
        if total and ns >= _SHOWN_SHARE * total:
            part, _, state = name.partition(".")
            place = f"{_PARTS.get(part, part)}: {STATE_TEXTS.get(state, state)}" if state != part else _PARTS[part]
            bar = "#" * max(1, round(_BAR * ns / total))
            yield f"    {format_ns(ns):>9} {bar:<{_BAR}} {place}"


def _all_affected(affected: Sequence[Affected]) -> Iterator[str]:
    if len(affected) > 1:
        yield f"  affected processes: {', '.join(map(_affected, affected))}"


def _affected(one: Affected) -> str:
    rank = f" rank {one.rank}" if one.rank is not None else ""
    return f"{one.name} [{one.pid}]{rank}" + (f" of {one.job}" if one.job else "")


def _culprits(culprits: Sequence[Culprit]) -> Iterator[str]:
    for one in culprits[:_TOP_CULPRITS]:
        place = (f" in {one.container}" if one.container else "") + (f" of {one.job}" if one.job else "")
        took = [format_ns(one.lost_ns)] if one.lost_ns else []
        took += [f"{format_count(one.switches)} switches"] if one.switches else []
        yield f"  culprit: {one.name} [{one.pid}]{place}  {', '.join(took)}".rstrip()
    if len(culprits) > _TOP_CULPRITS:
        rest = culprits[_TOP_CULPRITS:]
        more = "1 more culprit" if len(rest) == 1 else f"{len(rest)} more culprits"
        yield f"  and {more}, {format_ns(sum(one.lost_ns for one in rest))}"


def _chain(chain: Sequence[Link]) -> Iterator[str]:
    for place, link in enumerate(chain, 1):
        times = f" {format_ns(link.seen_ns)}" if link.seen_ns else ""
        if link.expected_ns is not None:
            times += f" (expected {format_ns(link.expected_ns)})"
        yield f"  {place}. {link.text}{':' if times else ''}{times}"
        proof = "; ".join(text for text in (link.structure, link.order) if text)
        if proof:
            yield f"     known by: {proof}"


def _verdict(verdict: ProcessVerdict) -> str:
    rank = f" rank {verdict.rank}" if verdict.rank is not None else ""
    where = f" on {verdict.node}" if verdict.node else ""
    job = f" of {verdict.job}" if verdict.job else ""
    return f"{verdict.name} [{verdict.pid}]{rank}{job}{where}: {verdict.text}"


def _change(now: float, usual: float) -> str:
    return f"{100 * (now / usual - 1):+.0f} %"
