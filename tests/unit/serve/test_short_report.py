"""Twelve lines that survive a chat window, whatever was found."""

from __future__ import annotations

import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.diagnose.findings import (
    Affected,
    CodeLine,
    Diagnosis,
    FindingKind,
    Fix,
    Incident,
    NotEvaluated,
    ProcessVerdict,
    Severity,
    Where,
)
from ingero.foreign_text import shell_word
from ingero.serve.text.short_report import COLUMNS, LINES, short_lines
from tests.unit.diagnose.causes.golden import diagnosed
from tests.unit.serve.test_findings_text import hogged

WHOLE = "ingero explain --db run.db"
LONG = "pt_data_worker-with-a-very-long-name " * 20
WIDE = "\u6a5f\u68b0\u5b66\u7fd2 " * 60


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    diagnosis = diagnosed(Path(tmp_path_factory.mktemp("hogged")), hogged)
    assert diagnosis.incidents
    return diagnosis


def cells(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


def fits(lines: list[str]) -> bool:
    return len(lines) <= LINES and max(map(cells, lines)) <= COLUMNS


def with_fix(diagnosis: Diagnosis, *fixes: Fix) -> list[str]:
    return short_lines(replace(diagnosis, incidents=(replace(diagnosis.incidents[0], fixes=fixes),)), whole=WHOLE)


def test_an_incident_has_headline_impact_where_fix_and_what_was_not_checked(found: Diagnosis) -> None:
    line = CodeLine(file="train.py", line=142, function="forward")
    missing = (NotEvaluated(cause="host-hang", reason="halts: not in this recording"),)
    [incident] = found.incidents
    one = replace(found, incidents=(replace(incident, where=Where(line=line)),), not_evaluated=missing)
    lines = short_lines(one, whole=WHOLE)
    assert fits(lines)
    assert "1 incident found (1 HIGH)" in lines[0]
    assert lines[1].startswith("HIGH cpu-contention, ")
    assert " lost " in lines[2]
    text = "\n".join(lines)
    for part in (
        "\nImpact   ",
        "of wall time lost",
        "syncs/s (baseline",
        "\nWhere    forward() at train.py:142\n",
        "\nFix      ",
        "\nNot checked (data missing): host-hang\n",
        f"\nDetails  {WHOLE}",
    ):
        assert part in text


def test_it_fits_whatever_was_found(found: Diagnosis) -> None:
    [first] = found.incidents
    place = CodeLine(file="/very/deep" * 20, line=1, function="f" * 200)
    many: list[Incident] = [
        replace(
            first, number=number, cause=f"cause-number-{number}", summary=text, node=text[:200],
            where=Where(line=place), severity=severity, fixes=(Fix(text=text, command="sudo " + "renice " * 40),),
        )
        for number in range(40)
        for text in (LONG, WIDE, "x" * 500, "\x1b[2J" * 100)
        for severity in Severity
    ]  # fmt: skip
    missing = tuple(NotEvaluated(cause=f"cause-{number}", reason=LONG) for number in range(50))
    for start in range(16):
        lines = short_lines(replace(found, incidents=tuple(many[start:]), not_evaluated=missing), whole=WHOLE)
        assert fits(lines)
        assert not any("\x1b" in line for line in lines)
        assert any(line.startswith("Also ") and line.endswith(" more") for line in lines)
        assert any(line.startswith("Not checked (data missing): cause-0, ") for line in lines)


def test_without_an_incident_it_is_the_verdict_of_each_process(found: Diagnosis) -> None:
    verdicts = tuple(
        ProcessVerdict(process=number, pid=number, name="job", text=f"fine {LONG}"[: 8 + number], has_incident=False)
        for number in range(300)
    )
    lines = short_lines(replace(found, incidents=(), verdicts=verdicts), whole=WHOLE)
    assert fits(lines)
    assert lines[0].endswith(": No incidents found.")
    assert lines[1].startswith("job [0]: fine")
    [more] = [line for line in lines if line.startswith("and ")]
    assert more == f"and {300 - sum(line.startswith('job ') for line in lines)} more processes"


def test_what_goes_on_and_what_lost_no_time_is_said(found: Diagnosis) -> None:
    event = replace(
        found.incidents[0], kind=FindingKind.EVENT, end_ns=None, lost_ns=0, lost_ratio=0.0, impact=None, fixes=(),
        affected=(Affected(process=1, pid=1, name="a"),),
    )  # fmt: skip
    lines = short_lines(replace(found, incidents=(event,)), whole=WHOLE)
    assert "ongoing" in lines[1]
    assert not any(line.startswith(("Impact", "Fix")) for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["a" * 20, "b" * 30, "c" * 40],
        ["it's one", "x" * 50, '"quoted   twice"', "y" * 20],
        ["two  spaces", "\\", "z" * 60, "$HOME"],
        ["it's \x1b[2J  of \\ a \u202e stranger's", "x" * 40, "y" * 20],
    ],
)
def test_a_broken_command_is_still_the_same_command(found: Diagnosis, words: list[str]) -> None:
    command = " ".join(["printf", *map(shell_word, ["%s\\n", *words])])
    assert len(command) > COLUMNS - 9
    lines = with_fix(found, Fix(text="do it", command=command))
    begin = next(index for index, line in enumerate(lines) if line.strip().startswith("printf"))
    end = next(index for index in range(begin, len(lines)) if not lines[index].endswith("\\"))
    assert end > begin
    shown = "\n".join(lines[begin : end + 1])
    printed = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == words
    assert fits(lines)


def test_a_command_that_finds_no_room_is_not_cut_to_another_one(found: Diagnosis) -> None:
    lines = with_fix(found, Fix(text="do it", command="sudo rm " + "x" * 300))
    assert fits(lines)
    assert not any("sudo rm" in line for line in lines)
    assert any(line.startswith("Fix      do it (a long command") for line in lines)
