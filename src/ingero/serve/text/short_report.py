"""A diagnosis in at most twelve lines of at most 80 columns, plain text: for a chat, a ticket, a commit message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingero.diagnose.findings import Diagnosis, Fix, Impact, Incident
from ingero.foreign_text import visible
from ingero.serve.text.findings_text import headline
from ingero.serve.text.incident_form import when_text
from ingero.serve.text.styles import cells
from ingero.units import format_count, format_moment, format_ns, format_number, format_percent

LINES, COLUMNS = 12, 80
_CUT = "..."
_TITLES = 9  # columns of the titles
_COMMAND_LINES = 3
_MAX_VERDICTS = 8  # lines of processes where no incident was found


def short_lines(diagnosis: Diagnosis, *, whole: str) -> list[str]:
    """The headline, the worst incident with impact, line and fix, the other incidents, and what was not checked.

    whole: the command that prints the whole report.
    """
    window = diagnosis.window
    when = f"{format_ns(window.duration_ns)} from {format_moment(window.begin_ns, of_ns=window.duration_ns)}"
    lines = _wrapped(f"{when}: {headline(diagnosis)}", 1 if diagnosis.incidents else 2)
    if diagnosis.incidents:
        worst, *others = diagnosis.incidents
        lines += [*_incident(worst), *_others(others)]
    else:
        lines += _verdicts(diagnosis)
    lines += _not_checked(diagnosis)
    if len(lines) < LINES and cells(whole) <= COLUMNS - _TITLES:
        lines += _titled("Details", whole, 1)
    return lines


def _incident(incident: Incident) -> Iterator[str]:
    """An incident in at most ten lines."""
    where = f" on {incident.node}" if incident.node else ""
    yield from _wrapped(f"{incident.severity.name} {incident.cause}{where}, {when_text(incident)}", 1)
    yield from _wrapped(incident.summary, 2)
    impact = "; ".join((*_lost(incident), *(_impact_text(incident.impact) if incident.impact else ())))
    yield from _titled("Impact", impact, 2)
    yield from _titled("Where", incident.where.text, 1)
    yield from _fix(incident.fixes)


def _lost(incident: Incident) -> Iterator[str]:
    if incident.lost_ns:
        yield f"{format_percent(incident.lost_ratio)} {incident.of_wall_time} lost"
        yield f"{format_percent(incident.explained_ratio)} of it explained"


def _impact_text(impact: Impact) -> Iterator[str]:
    """Throughput and p99 against the baseline."""
    usual = impact.baseline_per_s
    baseline = f" (baseline {format_number(usual)})" if usual else ""
    yield f"{format_number(impact.per_s)} {impact.judged_by.removesuffix(' interval')}s/s{baseline}"
    baseline = f" (baseline {format_ns(impact.baseline_p99_ns)})" if impact.baseline_p99_ns else ""
    yield f"{impact.judged_by} p99 {format_ns(impact.p99_ns)}{baseline}"


def _fix(fixes: Sequence[Fix]) -> list[str]:
    """The first fix with a command, which stays pasteable: it is broken as a shell accepts it, or left out.

    Four lines at most.
    """
    fix = next((fix for fix in fixes if fix.command), fixes[0] if fixes else None)
    if fix is None:
        return []
    command = _pasteable(visible(fix.command), COLUMNS - _TITLES)
    if len(command) > _COMMAND_LINES or any(cells(line) > COLUMNS - _TITLES for line in command):
        return _titled("Fix", f"{fix.text} (a long command: the whole report has it)", 2)
    return [*_titled("Fix", fix.text, 1), *(" " * _TITLES + line for line in command)]


def _others(others: Sequence[Incident]) -> list[str]:
    """The other incidents in one line."""
    shares = (f"{other.severity.name} {other.cause}" + _share(other) for other in others)
    return _titled("Also", _listed(list(shares), COLUMNS - _TITLES), 1) if others else []


def _share(incident: Incident) -> str:
    return f" ({format_percent(incident.lost_ratio)} lost)" if incident.lost_ns else ""


def _verdicts(diagnosis: Diagnosis) -> list[str]:
    """The verdict on each process; the last line counts those that do not fit."""
    lines: list[str] = []
    for shown, one in enumerate(diagnosis.verdicts):
        on_node = f" on {one.node}" if one.node else ""
        more = _wrapped(f"{one.name} [{one.pid}]{on_node}: {one.text}", 2)
        if len(lines) + len(more) > _MAX_VERDICTS - 1:
            return [*lines, f"and {format_count(len(diagnosis.verdicts) - shown)} more processes"]
        lines += more
    return lines


def _not_checked(diagnosis: Diagnosis) -> list[str]:
    """The causes not checked, in one line; those never checked first."""
    missing = sorted(diagnosis.not_evaluated, key=lambda spot: bool(spot.time_ranges))
    causes = list(dict.fromkeys(missing_node.cause for missing_node in missing))
    title = "Not checked (data missing): "
    return _wrapped(f"{title}{_listed(causes, COLUMNS - len(title))}", 1) if causes else []


def _listed(items: Sequence[str], width: int) -> str:
    """As many items as fit, and the number of the rest."""
    for shown in range(len(items), 0, -1):
        more = f" and {len(items) - shown} more" if shown < len(items) else ""
        text = f"{', '.join(items[:shown])}{more}"
        if cells(text) <= width:
            return text
    return f"{len(items)} more"


def _titled(title: str, text: str, most: int) -> list[str]:
    """Text beside its title. most: lines."""
    first, *more = _wrapped(text, most, COLUMNS - _TITLES)
    return [f"{title:<{_TITLES}}{first}", *(" " * _TITLES + line for line in more)] if first else []


def _wrapped(text: str, most: int, width: int = COLUMNS) -> list[str]:
    """Text in at most so many lines; longer text is cut and ends in a mark."""
    lines = [""]
    for word in visible(text).split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or cells(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    kept = lines[:most]
    if lines[most:]:
        kept[-1] = f"{kept[-1]} {lines[most]}{_CUT}"
    return [_cropped(line, width) for line in kept]


def _cropped(line: str, width: int) -> str:
    if cells(line) <= width:
        return line
    text = line.removesuffix(_CUT)
    while cells(text) > width - len(_CUT):
        text = text[:-1]
    return text.rstrip() + _CUT


def _pasteable(command: str, width: int) -> list[str]:
    """The command in lines that a shell takes as one: broken at spaces outside single quotes, by a backslash.

    A word that is wider than that stays whole, on a line that is too wide.
    """
    if not command:
        return []
    lines = [""]
    for word in _words(command):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or cells(joined) <= width - len(" \\"):
            lines[-1] = joined
        else:
            lines[-1] += " \\"
            lines.append(f"  {word}")
    return lines


def _words(command: str) -> Iterator[str]:
    """The words of a command, split at spaces where a shell allows a backslash and a line break."""
    word, quote, is_escaped = "", "", False
    for char in command:
        if char == " " and quote in ("", '"') and not is_escaped:
            yield word
            word = ""
            continue
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote[-1] else quote
        elif char in "'\"":
            quote = "$'" if char == "'" and word.endswith("$") else char
        word += char
    yield word
