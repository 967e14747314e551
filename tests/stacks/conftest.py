"""These tests need what `python -m tests.stacks` has fetched: they are collected there only."""

from __future__ import annotations

import os

import pytest

from tests.stacks.report import Report

collect_ignore_glob = [] if os.environ.get("INGERO_STACKS") else ["test_*.py"]
_REPORT = Report()


@pytest.fixture
def report() -> Report:
    """Where a test leaves its figures."""
    return _REPORT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the tables."""
    if _REPORT.rows:
        _REPORT.write()
        terminalreporter.write_line("\n" + _REPORT.text())
