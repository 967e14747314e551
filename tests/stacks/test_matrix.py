"""The workload on every interpreter: each stack is what the interpreter says of itself, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.python_truth import compare
from tests.stacks.report import Report
from tests.stacks.subjects import subjects

_REUSED = 1500


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", subjects())
def test_every_stack_is_exactly_right(name: str, tmp_path: Path, report: Report) -> None:
    found = compare(subjects()[name], tmp_path, _REUSED)
    exact_code = found.reused - found.wrong_by_case["freed code"] - found.missing_by_case["freed code"]
    report.add("matrix", name, str(found), f"{exact_code} of {found.reused}", str(found.lost or "none"))
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert bool(found.missing) <= bool(found.lost), (found.missing_by_case, found.missing[-2:])
    assert found.reused == _REUSED
