"""The workload on every interpreter: each stack is what the interpreter says of itself, and none is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.python_truth import compare
from tests.stacks.report import Report
from tests.stacks.subjects import subjects

_REUSED = 1500


def _does_not_count(subject: str) -> bool:
    """Whether its interpreter leaves the code objects that it frees to be counted by a probe."""
    return int(re.findall(r"\d+", subject)[1]) < 14


_WAYS = [(name, False) for name in subjects()] + [(name, True) for name in subjects() if _does_not_count(name)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "is_counted"), _WAYS)
def test_every_stack_is_exactly_right(name: str, is_counted: bool, tmp_path: Path, report: Report) -> None:
    found = compare(subjects()[name], tmp_path, _REUSED, is_counted=is_counted)
    exact_code = found.reused - found.wrong_by_case["freed code"] - found.missing_by_case["freed code"]
    way = f"{name}, freed code counted" if is_counted else name
    report.add("matrix", way, str(found), f"{exact_code} of {found.reused}", str(found.lost or "none"))
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert bool(found.missing) <= bool(found.lost), (found.missing_by_case, found.missing[-2:])
    assert found.reused == _REUSED
