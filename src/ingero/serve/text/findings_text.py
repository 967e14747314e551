"""A diagnosis as text: incidents worst first, the verdict on each process, and what could not be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ingero.diagnose.findings import Diagnosis, FindingKind, Incident, ProcessVerdict
from ingero.diagnose.profile.words import NOT_IN_A_PROFILE, WHY_NOT_IN_A_PROFILE
from ingero.serve.text.incident_form import sections, title_line
from ingero.store.arrays.spans import joined
from ingero.units import format_count, format_counted, format_moment, format_ns

_TITLES = 14  # columns of the titles of sections
_SEE_BELOW = "not traced, see below"  # used where a list of untraced sources with one reason follows
_TOP_NOT_EVALUATED = 6  # reasons; the rest is one line
_MAX_SIMILAR_INCIDENTS = 4  # incidents of one cause in processes of one name; of short-lived ones there may be hundreds
_MAX_VERDICTS = 40


def verdict_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """The headline, the incidents with their evidence, and the verdict on each process."""
    yield headline(diagnosis)
    yield ""
    for similar in _group_similar(diagnosis.incidents):
        for incident in similar[:_MAX_SIMILAR_INCIDENTS]:
            yield from incident_lines(incident)
            yield ""
        if rest := similar[_MAX_SIMILAR_INCIDENTS:]:
            yield _more_similar(rest)
            yield ""
    shown = sorted(diagnosis.verdicts, key=lambda verdict: not verdict.has_incident)[:_MAX_VERDICTS]
    for verdict in diagnosis.verdicts:
        if verdict in shown:
            yield _verdict(verdict)
    if len(diagnosis.verdicts) > len(shown):
        yield f"and {format_count(len(diagnosis.verdicts) - len(shown))} more processes (--json lists all)"
    if diagnosis.verdicts:
        yield ""


def _group_similar(incidents: Sequence[Incident]) -> list[list[Incident]]:
    """Groups incidents of one cause in processes of one name; the order of groups and incidents is kept."""
    groups: dict[tuple[str, FindingKind, tuple[str, ...]], list[Incident]] = {}
    for incident in incidents:
        groups.setdefault((incident.cause, incident.kind, _names(incident)), []).append(incident)
    return list(groups.values())


def _names(incident: Incident) -> tuple[str, ...]:
    """The names of the affected processes, else of the culprits, each once; none where a recording ended too early."""
    return tuple(sorted({one.name for one in (incident.affected or incident.culprits) if one.name}))


def _more_similar(rest: Sequence[Incident]) -> str:
    first = rest[0]
    whose = f" of {', '.join(_names(first))}" if _names(first) else ""
    whose += f" on {', '.join(nodes)}" if (nodes := sorted({one.node for one in rest if one.node})) else ""
    lost_ns = max(one.lost_ns for one in rest)
    each = f", up to {format_ns(lost_ns)} lost each" if lost_ns else ""
    begin_ns, end_ns = min(one.start_ns for one in rest), max(one.end_ns or one.start_ns for one in rest)
    begin, end = (format_moment(at, of_ns=end_ns - begin_ns) for at in (begin_ns, end_ns))
    more = f"and {format_count(len(rest))} more like this: {first.cause}{whose}{each} ({begin} to {end})"
    return f"{more}; --pid N shows one process, --json all"


def headline(diagnosis: Diagnosis) -> str:
    """How many incidents of which severity, or why finding none proves nothing."""
    if diagnosis.incidents:
        count = len(diagnosis.incidents)
        severities = sorted({incident.severity for incident in diagnosis.incidents}, reverse=True)
        parts = (f"{sum(incident.severity is s for incident in diagnosis.incidents)} {s.name}" for s in severities)
        return f"{count} incident{'s' if count > 1 else ''} found ({', '.join(parts)})"
    if diagnosis.verdicts:
        unseen_ns = unseen_for_ns(diagnosis)
        but = f" For {format_ns(unseen_ns)}, some causes could not be checked." if unseen_ns else ""
        return f"No incidents found.{but}"
    return "No verdict: the recording has no steps and no GPU syncs, so lost time cannot be measured."


def unseen_for_ns(diagnosis: Diagnosis) -> int:
    """For how long some cause could not be checked that could be at other times."""
    time_ranges = joined(part for spot in diagnosis.not_evaluated for part in spot.time_ranges)
    return sum(one.duration_ns for one in time_ranges)


def incident_lines(incident: Incident) -> Iterator[str]:
    """One incident: its title, its headline, and its sections with their titles in a column of their own."""
    yield title_line(incident)
    yield ""
    yield f"  {incident.summary}"
    yield ""
    for section in sections(incident):
        for index, line in enumerate(section.lines):
            yield f"  {section.title if index == 0 else '':<{_TITLES}}{line}"


def not_looked_at_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Causes that could not be checked, by reason: their absence above proves nothing."""
    if diagnosis.profiles:
        yield from _not_in_a_profile(diagnosis)
        return
    by_reason: dict[str, list[str]] = {}
    shared = [why for why, sources in Counter(diagnosis.not_traced.values()).items() if sources > 1]
    for spot in diagnosis.not_evaluated:
        is_shared = any(spot.text.endswith(f"not traced: {why}") for why in shared)
        by_reason.setdefault(_SEE_BELOW if is_shared else spot.text, []).append(spot.cause)
    if by_reason:
        yield "Not checked (data missing), so these cannot be ruled out:"
    for reason, causes in list(by_reason.items())[:_TOP_NOT_EVALUATED]:
        yield f"  {', '.join(causes)} ({reason})"
    rest = list(by_reason.values())[_TOP_NOT_EVALUATED:]
    if rest:
        yield f"  and {sum(map(len, rest))} more causes"


def _not_in_a_profile(diagnosis: Diagnosis) -> Iterator[str]:
    """One line per reason: nearly all causes have the same."""
    for reason in dict.fromkeys(spot.text for spot in diagnosis.not_evaluated):
        count = format_counted(sum(spot.text == reason for spot in diagnosis.not_evaluated), "cause")
        text = WHY_NOT_IN_A_PROFILE if reason == NOT_IN_A_PROFILE else reason
        yield f"Not checked: {text} ({count}, --json lists them)"


def _verdict(verdict: ProcessVerdict) -> str:
    rank = f" rank {verdict.rank}" if verdict.rank is not None else ""
    where = f" on {verdict.node}" if verdict.node else ""
    job = f" of {verdict.job}" if verdict.job else ""
    return f"{verdict.name} [{verdict.pid}]{rank}{job}{where}: {verdict.text}"
