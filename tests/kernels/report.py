"""Turns what pytest left in a guest into a table: kernel by suite, passed, failed and skipped with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one suite in one guest. failed and skipped: test -> why."""

    passed: int
    failed: Mapping[str, str]
    skipped: Mapping[str, str]
    ended: bool = True

    @property
    def is_bad(self) -> bool:
        """Whether anything went wrong."""
        return bool(self.failed) or not self.ended

    @property
    def cell(self) -> str:
        """Its place in the table."""
        if not self.ended:
            return "no end"
        parts = [f"{self.passed} ok"]
        if self.failed:
            parts.append(f"{len(self.failed)} FAILED")
        if self.skipped:
            parts.append(f"{len(self.skipped)} skip")
        return ", ".join(parts)


def read_outcome(folder: Path, suite: str) -> Outcome:
    """The outcome of a suite by pytest's own report."""
    path = folder / f"{suite}.xml"
    if not path.exists():
        return Outcome(passed=0, failed={}, skipped={}, ended=False)
    passed, failed, skipped = 0, {}, {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            failed[name] = bad.get("message", "")
        elif skip is not None:
            skipped[name] = skip.get("message", "")
        else:
            passed += 1
    return Outcome(passed=passed, failed=failed, skipped=skipped)


def failures(outcomes: Mapping[str, Outcome]) -> str:
    """One line per failed test."""
    lines = []
    for suite, outcome in outcomes.items():
        for name, message in outcome.failed.items():
            lines.append(f"  FAILED {suite}: {name}: {message.splitlines()[0][:160] if message else ''}\n")
    return "".join(lines)


def skips(results: Mapping[str, Mapping[str, Outcome]]) -> str:
    """Each reason for a skip once, with the number of tests and the guests."""
    found: dict[str, tuple[int, dict[str, None]]] = {}
    for guest, outcomes in results.items():
        for outcome in outcomes.values():
            for reason in outcome.skipped.values():
                count, guests = found.get(reason, (0, {}))
                found[reason] = (count + 1, guests | {guest: None})
    return "\n".join(f"skipped {count} in {', '.join(guests)}: {reason}" for reason, (count, guests) in found.items())


def table(results: Mapping[str, Mapping[str, Outcome]], suites: Sequence[str]) -> str:
    """Kernels down, suites across; a dash where a suite was not asked for."""
    head = ["kernel", *suites]
    rows = [[name, *(row[suite].cell if suite in row else "-" for suite in suites)] for name, row in results.items()]
    widths = [max(len(line[index]) for line in (head, *rows)) for index in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)
