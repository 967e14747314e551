"""Rules about imported profiles: where they find something, and where they stay quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.diagnose.findings import FindingKind, Severity
from tests.unit.profiled_recording import Program, diagnosed, imported

_USER_LINE = ("/job/model.py", 1421, "box_predictor")


def _steps(program: Program, count: int, *, busy: float, loading: float = 0.0, wait: float = 0.0) -> None:
    """Steps of 20 ms: kernels of `busy` ms together, a wait for them, then the data loader."""
    for number in range(count):
        at = number * 20.0
        program.step(at, at + 20)
        for place in range(20):
            begin = at + busy * place / 20
            program.launch(at + place * 0.01, runs=(begin, begin + busy / 20))
        if wait:
            program.call("cudaStreamSynchronize", at + busy - wait, wait, stack=[_USER_LINE])
        if loading:
            program.range("data_loading", "enumerate(DataLoader)", at + 20 - loading, at + 20)
    program.launch(count * 20.0, runs=(count * 20.0, count * 20.0 + busy))


def test_data_loading_with_an_idle_gpu_is_data_starvation_at_the_wait_that_emptied_the_queue(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        _steps(recording.program(rank=3), 5, busy=12, loading=8, wait=6)
    (incident,) = diagnosed(tmp_path / "a.db").incidents
    assert (incident.cause, incident.kind, incident.severity) == (
        "data-starvation",
        FindingKind.BOTTLENECK,
        Severity.HIGH,
    )
    assert (incident.lost_ns, incident.lost_ratio) == (40_000_000, pytest.approx(0.4))
    assert str(incident.line) == "box_predictor() at /job/model.py:1421"
    assert "40% of its steps" in incident.summary
    assert [(one.pid, one.rank, one.lost_ns) for one in incident.affected] == [(700, 3, 40_000_000)]


def test_data_loading_beside_a_busy_gpu_is_no_trouble(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        _steps(program, 5, busy=19.5)
        program.range("data_loading", "enumerate(DataLoader)", 0, 100)
    assert diagnosed(tmp_path / "a.db").incidents == ()


def test_one_or_two_short_steps_say_nothing_about_a_program(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        _steps(recording.program(), 2, busy=12, loading=8)
    assert diagnosed(tmp_path / "a.db").incidents == ()


def test_a_single_slow_step_is_no_trouble_of_the_program(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        _steps(program, 5, busy=19.5)
        program.range("data_loading", "enumerate(DataLoader)", 120, 180)
        program.launch(180, runs=(180, 190))
        program.step(100, 190)
    assert diagnosed(tmp_path / "a.db").incidents == ()


def test_long_pieces_of_host_code_are_told_with_their_range(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        _steps(program, 5, busy=14)
        for number in range(5):
            program.range("range", "collate", number * 20 + 14, number * 20 + 20)
    (incident,) = diagnosed(tmp_path / "a.db").incidents
    assert (incident.cause, incident.lost_ratio) == ("host-bound", pytest.approx(0.3))
    assert incident.summary.endswith("most of it in collate")


def test_host_code_is_no_trouble_of_a_program_that_the_gpu_paces(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        _steps(program, 5, busy=17, wait=16)
        for number in range(5):
            program.range("range", "collate", number * 20 + 17, number * 20 + 20)
    assert diagnosed(tmp_path / "a.db").incidents == ()


@pytest.mark.parametrize(("gap", "causes"), [(0.06, ["launch-bound"]), (0.02, [])])
def test_launches_one_by_one_are_told_from_a_quarter_of_the_time_on(
    tmp_path: Path, gap: float, causes: list[str]
) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        for number in range(600):
            at = number * 0.1
            program.launch(at + gap, runs=(at + gap, at + 0.1))
        for number in range(3):
            program.step(number * 20, number * 20 + 20)
    assert [one.cause for one in diagnosed(tmp_path / "a.db").incidents] == causes


@pytest.mark.parametrize(("moving", "causes"), [(6.0, ["memcpy-bound"]), (0.05, [])])
def test_copies_are_told_by_their_own_time_and_never_by_that_of_their_wait(
    tmp_path: Path, moving: float, causes: list[str]
) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        for number in range(5):
            at = number * 20.0
            program.step(at, at + 20)
            program.launch(at, runs=(at, at + 20 - moving))
            program.copy(at + 1, took=19, runs=(at + 20 - moving, at + 20), direction="gpu_to_host", size=64)
    assert [one.cause for one in diagnosed(tmp_path / "a.db").incidents] == causes


def _ranks(path: Path, late: list[int]) -> None:
    """Two ranks and a collective each 20 ms, to which the named one comes 8 ms after the other."""
    with imported(path) as recording:
        for rank in (0, 1):
            program = recording.program(700 + rank, rank=rank, gpu=rank)
            for number, last in enumerate(late):
                begin = number * 20 + (10 if last == rank else 2)
                program.launch(number * 20, runs=(number * 20, begin), kernel="gemm")
                program.launch(begin, runs=(begin, number * 20 + 20), kernel="ncclDevKernel_AllReduce", stream=20)
                program.step(number * 20, number * 20 + 20)


def test_a_rank_that_comes_last_again_and_again_is_a_straggler(tmp_path: Path) -> None:
    _ranks(tmp_path / "a.db", [1, 1, 1, 1, 0])
    (incident,) = diagnosed(tmp_path / "a.db").incidents
    assert (incident.cause, incident.root) == ("nccl-straggler", "python [701] rank 1")
    assert (incident.lost_ns, [one.pid for one in incident.culprits]) == (32_000_000, [701])
    assert "came last to 4 of 5 collectives" in incident.summary


def test_ranks_that_come_last_in_turn_are_no_stragglers(tmp_path: Path) -> None:
    _ranks(tmp_path / "a.db", [1, 0, 1, 0, 1])
    assert diagnosed(tmp_path / "a.db").incidents == ()


def test_causes_that_need_the_scheduler_are_named_once_with_one_reason(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        _steps(recording.program(), 5, busy=19.5)
    missing = diagnosed(tmp_path / "a.db").not_evaluated
    causes = [one.cause for one in missing]
    assert len(causes) == len(set(causes))
    assert "cpu-contention" in causes
    assert "data-starvation" not in causes
    assert len({one.reason for one in missing}) == 1
