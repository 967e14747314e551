"""The trainer's log of steps."""

from pathlib import Path

from ingero.demo.workloads import steps
from ingero.demo.workloads.steps import Step


def step(number: int, t_ns: int, step_ns: int = 10) -> Step:
    return Step(step=number, t_ns=t_ns, step_ns=step_ns, data_ns=0)


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"step": 0, "t_ns": 5, "step_ns": 4, "data_ns": 1}\n{"step": 1, "t_')
    assert steps.read(log) == [Step(step=0, t_ns=5, step_ns=4, data_ns=1)]


def test_a_log_without_a_whole_line_has_no_steps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"step": 0')
    assert steps.read(log) == []


def test_a_reader_goes_on_where_the_whole_lines_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"step": 0, "t_ns": 5, "step_ns": 4}\n{"step": 1, "t_')
    begin = steps.whole_bytes(log)
    with log.open("a") as file:
        file.write('ns": 9, "step_ns": 4}\n')
    assert steps.read(log, begin) == [Step(step=1, t_ns=9, step_ns=4)]
    assert steps.read(log, steps.whole_bytes(log)) == []


def test_a_window_has_the_steps_that_ended_in_it() -> None:
    assert [s.step for s in steps.between([step(0, 9), step(1, 10), step(2, 20)], 10, 20)] == [1]


def test_catching_up_repays_a_drop() -> None:
    assert steps.lost_ns([step(0, 1, 15), step(1, 2, 5)], reference_ns=10) == 0
