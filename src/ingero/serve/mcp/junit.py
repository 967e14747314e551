"""The outcome of a test run, from the JUnit file that pytest writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ingero.errors import IngeroError
from ingero.serve.mcp.untrusted import traced

_HINT = "pytest --junit-xml=report.xml tests/unit; ingero mcp --test-report report.xml"
_MAX_FAILED = 50
_COUNTS = ("tests", "failures", "errors", "skipped")


class ReportError(IngeroError):
    """The file is not a test report."""


def read_report(path: Path | None) -> dict[str, Any]:
    """Counts and the names of failed tests; without a file, how to make one.

    Raises:
        ReportError: the file cannot be read.
    """
    if path is None:
        return {"available": False, "hint": _HINT}
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
        counts = {name: sum(int(one.get(name, 0)) for one in suites) for name in _COUNTS}
        time_s = sum(float(one.get("time", 0)) for one in suites)
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise ReportError(f"{path} is not a test report: {error}", hint=_HINT) from error
    failed = [
        traced(f"{case.get('classname', '')}::{case.get('name', '')}")
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"available": True, **counts, "time_s": time_s, "failed": failed[:_MAX_FAILED], "hint": ""}


def report_text(report: Mapping[str, Any]) -> str:
    """One line, and the failed tests."""
    if not report["available"]:
        return f"This server was started without a test report. To make one and to start with it: {report['hint']}"
    head = ", ".join(f"{report[name]} {name}" for name in _COUNTS)
    return "\n".join([head, *report["failed"]])
