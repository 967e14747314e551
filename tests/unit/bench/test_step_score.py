"""How the bench scores steps against the marks of the program, and each program by itself."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bench.incidents.judge import Judgement
from bench.incidents.recording import Label
from bench.incidents.scenario import Scenario
from bench.incidents.score import Scored, totals
from bench.incidents.score_programs import ONCE_A_STEP, programs
from bench.incidents.step_score import StepScore, Times, score, score_recording
from bench.incidents.truth import step_marks
from ingero.demo.workloads import infer, steps

MS = 1_000_000
LENGTHS_MS = [6 + n % 3 for n in range(60)]
MARKS = [(sum(LENGTHS_MS[:n]) * MS, steps.TRAIN) for n in range(60)]


def rows(begins: list[int]) -> Times:
    return np.array(list(itertools.pairwise(begins)), np.int64).reshape(-1, 2)


@pytest.mark.parametrize("phase_ns", [0, MS // 10, 3 * MS, 5 * MS])
def test_a_marker_anywhere_in_the_step_finds_exactly_the_steps(phase_ns: int) -> None:
    scored = score(rows([at_ns + phase_ns for at_ns, _ in MARKS]), MARKS)
    assert scored.is_exact
    assert scored.found >= len(MARKS) - 2
    assert scored.median_error_ms == pytest.approx(0.0)


def test_the_error_is_of_the_lengths() -> None:
    jittered = [at_ns + (n % 2) * MS // 2 for n, (at_ns, _) in enumerate(MARKS)]
    scored = score(rows(jittered), MARKS)
    assert scored.is_exact
    assert (scored.median_error_ms, scored.p95_error_ms) == (pytest.approx(0.5), pytest.approx(0.5))


def test_half_and_double_steps_are_counted() -> None:
    begins = [at_ns for at_ns, _ in MARKS]
    doubled = score(rows(begins[::2]), MARKS)
    halved = score(rows(sorted([*begins, *(at_ns + 3 * MS for at_ns in begins)])), MARKS)
    assert (doubled.half, doubled.double) == (0, len(begins[::2]) - 1)
    assert halved.double == 0
    assert halved.half >= len(begins) - 2
    assert not doubled.is_exact
    assert not halved.is_exact


def test_what_is_found_in_an_evaluation_counts_for_nothing() -> None:
    batches = [(MARKS[30][0] - 2 * MS + n * MS // 2, steps.EVAL) for n in range(4)]
    begins = sorted([*(at_ns for at_ns, _ in MARKS), *(at_ns for at_ns, _ in batches)])
    scored = score(rows(begins), sorted([*MARKS, *batches]))
    assert (scored.half, scored.double, scored.true) == (0, 0, len(MARKS) - 1)


def test_without_rows_nothing_is_found() -> None:
    scored = score(rows([]), MARKS)
    assert scored == StepScore(true=len(MARKS) - 1, found=0, half=0, double=0)
    assert not scored.is_exact


def test_each_part_of_an_accumulated_step_may_be_a_step(tmp_path: Path) -> None:
    kinds = [steps.TRAIN if n % 4 == 0 else steps.MICRO for n in range(len(MARKS))]
    label = Label(scenario="any", seed=1, pid=7, stepping_pid=7)
    label.marks = [(at_ns, kind) for (at_ns, _), kind in zip(MARKS, kinds, strict=True)]
    label.write(tmp_path)
    assert len(step_marks(tmp_path)) == len(MARKS) // 4
    begins = [at_ns for at_ns, _ in MARKS]
    for number, found in enumerate((begins, begins[::4])):
        database = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE steps (pid, start_ns, end_ns)")
            connection.executemany("INSERT INTO steps VALUES (7, ?, ?)", rows(found).tolist())
        scored = score_recording(database, label)
        assert scored is not None
        assert scored.is_exact


def test_requests_without_a_period_are_not_scored(tmp_path: Path) -> None:
    label = Label(scenario="any", seed=1, pid=7, marks=[(at_ns, infer.REQUEST) for at_ns, _ in MARKS])
    assert score_recording(tmp_path / "none.db", label) is None


def scored_run(program: str, found: int) -> Scored:
    judgement = Judgement(parts=(), incidents=0, wrong=(), unexplained=0, dose=None)
    taken = StepScore(true=10, found=found, half=0, double=0, median_error_ms=0.1, p95_error_ms=0.2)
    scenario = Scenario(name="any", group="healthy", program=program)
    return Scored(scenario=scenario, judgement=judgement, is_disturbed=False, steps=taken)


def test_each_program_has_a_row_and_says_where_no_step_was_recorded() -> None:
    head, *table = programs([scored_run("", 0), scored_run("nosync", 10), scored_run("nosync", 5)])
    by_name = {row[0]: dict(zip(head, row, strict=True)) for row in table}
    assert by_name[ONCE_A_STEP]["steps"] == "none recorded"
    assert by_name["nosync"]["steps"] == "2/2"
    assert by_name["nosync"]["seen"] == "75%"


def test_the_promise_of_exact_steps_is_judged_once_any_are_recorded() -> None:
    def kept(*found: int) -> bool | None:
        wanted = [total for total in totals([scored_run("nosync", each) for each in found]) if "steps" in total.promise]
        return wanted[0].is_kept

    assert [kept(0, 0), kept(10, 10), kept(10, 0)] == [None, True, False]
