"""Styles finished lines: marks severities, headings, verdicts and commands in a report.

What a line begins with says what it is. A name that stands at the margin could at most color its own line: styles are
no escapes yet, and what else a name could do to a terminal is undone when the line is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.findings import Severity
from ingero.serve.text.styles import Line, Style, marked

_SEVERITIES: Mapping[str, Style] = MappingProxyType({
    Severity.CRITICAL.name: Style.HIGH,
    Severity.HIGH.name: Style.HIGH,
    Severity.MEDIUM.name: Style.MEDIUM,
    Severity.LOW.name: Style.LOW,
})  # fmt: skip
_VERDICTS: Mapping[str, Style] = MappingProxyType({
    Verdict.BETTER.value: Style.OK,
    Verdict.GONE.value: Style.OK,
    Verdict.WORSE.value: Style.FAILED,
    Verdict.NEW.value: Style.FAILED,
    Verdict.UNKNOWN.value: Style.DIM,
})  # fmt: skip

_WORST_FIRST = "|".join(_SEVERITIES)
_FOUND = re.compile(r"[\d,]+ incidents? found")
_COUNTED = re.compile(rf"\d+ ({_WORST_FIRST})\b")  # in the headline
_INCIDENT = re.compile(rf"({_WORST_FIRST})  (\S+)")
_CHAIN = re.compile(rf"\[({_WORST_FIRST})\]")  # one of a node, or of an older version
_CHANGE = re.compile(rf"  incident \d+ \w+:? +({_WORST_FIRST}) (\S+)")
_SECTION = re.compile(
    r"  (?:(Impact|Where|Fix|Breakdown|Affected|Culprits|Contributing|Evidence|Timeline|Details)(?=  |$)|"
    r"(Root cause|Fix|[a-z]+)(?=: ))"
)
_FIXES = ("Fix", "fix", "try")
_TABLE_HEAD = re.compile(r" *(cause|call|process|step type|[a-z ]+s of) .*\b(before|count|mean|busy)\b")
# Of the rest, the first that fits.
_AT_THE_MARGIN = (
    (re.compile(r"(No incidents? found\.)"), Style.OK),
    (re.compile(r"(No (?:incident|verdict).*)"), Style.WARNING),
    (re.compile(r"(Not (?:evaluated|checked)[^:]*)"), Style.WARNING),
    (re.compile(r"(=== .* ===|\S.* \[\d+\])$"), Style.HEADING),  # of a node, of a process
)


def report_lines(lines: Iterable[str]) -> Iterator[Line]:
    """A report of `explain` with its headline, severities, section headings and commands marked."""
    marking = _Report()
    return (marking.line(line) for line in lines)


class _Report:
    """Marks line by line: of some the style depends on what stands above them."""

    def __init__(self) -> None:
        self._is_summary_next = False
        self._command_indent: int | None = None  # within a fix: lines that begin there or further in are commands

    def line(self, line: str) -> Line:
        """The line, marked."""
        indent = len(line) - len(line.lstrip(" "))
        if indent == len(line):
            return line
        if indent == 0:
            return self._at_the_margin(line)
        section = _SECTION.match(line)
        if self._is_summary_next and not (section and section[1]):
            self._is_summary_next = False
            return marked(line, (indent, len(line), Style.HEADING))
        if section:
            return self._heading(line, section)
        if self._command_indent is not None and indent >= self._command_indent:
            return marked(line, (indent, len(line), Style.COMMAND))
        return marked(line, (indent, len(line), Style.HEADING)) if _TABLE_HEAD.match(line) else line

    def _heading(self, line: str, section: re.Match[str]) -> Line:
        """Style a line that begins with the name of a section, in a column of its own or before a colon."""
        self._is_summary_next = False
        is_column = section[1] is not None
        name = 1 if is_column else 2
        begins = len(line) - len(line[section.end() :].lstrip(": "))
        self._command_indent = begins + is_column if section[name] in _FIXES else None
        return marked(line, (*section.span(name), Style.HEADING))

    def _at_the_margin(self, line: str) -> Line:
        self._command_indent, self._is_summary_next = None, False
        if incident := _INCIDENT.match(line):
            self._is_summary_next = True
            return marked(line, (*incident.span(1), _SEVERITIES[incident[1]]), (*incident.span(2), Style.HEADING))
        if chain := _CHAIN.match(line):
            return marked(line, (*chain.span(1), _SEVERITIES[chain[1]]))
        if _FOUND.match(line):
            return marked(line, *((*one.span(), _SEVERITIES[one[1]]) for one in _COUNTED.finditer(line)))
        for pattern, style in _AT_THE_MARGIN:
            if found := pattern.match(line):
                return marked(line, (*found.span(1), style))
        return line


def comparison_line(line: str) -> Line:
    """A line of `compare` with its verdict marked, at its beginning or at its end, or as the head of a table."""
    if line.startswith("No verdict"):
        return marked(line, (0, len(line), Style.WARNING))
    for word, style in _VERDICTS.items():
        if line.startswith(f"{word}: "):
            return marked(line, (0, len(word), style))
        if line.endswith(f"  {word}"):
            return marked(line, (len(line) - len(word), len(line), style))
    return marked(line, (0, len(line), Style.HEADING)) if _TABLE_HEAD.match(line) else line


def incident_change(line: str) -> Line:
    """The line of an incident that opened, grew or closed, with its severity and cause marked."""
    found = _CHANGE.search(line)
    return marked(line, (*found.span(1), _SEVERITIES[found[1]]), (*found.span(2), Style.HEADING)) if found else line
