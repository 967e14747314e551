"""Python frames of recorded calls, against what each interpreter says of itself (sys._getframe)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.interpreters import interpreters
from tests.integration.python_truth import Subject, compare

_REUSED = 300


@pytest.mark.parametrize("name", interpreters())
def test_the_line_of_every_call_is_the_one_that_was_executing(name: str, tmp_path: Path) -> None:
    found = compare(Subject(name, interpreters()[name]), tmp_path, _REUSED)
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert not found.missing, (found.missing_by_case, found.lost)
