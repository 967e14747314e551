"""Python frames of recorded calls, against what each interpreter says of itself (sys._getframe)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.integration.interpreters import counts_freed, interpreters
from tests.integration.python_truth import Comparison, Subject, compare, compare_both

_REUSED = 300
_WITHOUT_LOOP = """
import os, pathlib, ingero.attach.kernel_side as kernel_side
from ingero.attach.libbpf.features import Helper, has_helper
def without_loop(helper):
    pathlib.Path(os.environ["ASKED"]).touch()
    return helper is not Helper.LOOP and has_helper(helper)
kernel_side.has_helper = without_loop
"""  # to the agent this kernel is one without bpf_loop(), such as 5.15


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Comparison, Comparison | None]]:
    """Each interpreter recorded once: as it is, and where it does not count the code that it frees, once that is."""

    @cache
    def run_once(name: str) -> tuple[Comparison, Comparison | None]:
        subject, folder = Subject(name, interpreters()[name]), tmp_path_factory.mktemp("compared")
        if counts_freed(subject.program):
            return compare(subject, folder, _REUSED), None
        return compare_both(subject, folder, _REUSED)

    return run_once


@pytest.mark.parametrize("name", interpreters())
def test_the_line_of_every_call_is_the_one_that_was_executing(
    name: str, compared: Callable[[str], tuple[Comparison, Comparison | None]]
) -> None:
    found, _ = compared(name)
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert not found.missing, (found.missing_by_case, found.lost)


@pytest.mark.parametrize("name", [name for name, one in interpreters().items() if not counts_freed(one)])
def test_an_address_is_trusted_only_while_no_code_is_freed(
    name: str, compared: Callable[[str], tuple[Comparison, Comparison | None]]
) -> None:
    _, found = compared(name)
    assert found is not None
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert not found.missing, (found.missing_by_case, found.lost)


def test_the_lines_are_the_same_on_a_kernel_without_bpf_loop(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_LOOP)
    asked = tmp_path / "asked"
    variables = {"PYTHONPATH": str(tmp_path), "ASKED": str(asked)}
    subject = Subject("without bpf_loop", Path(sys.executable))
    found = compare(subject, tmp_path, _REUSED, agent_variables=variables)
    assert asked.exists()
    assert not found.wrong, (found.wrong_by_case, found.wrong[-2:])
    assert not found.missing, (found.missing_by_case, found.lost)
    print(found)
