"""What is measured of a profiled process: busy and idle GPU time and its owners, waits, pace, steps, collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.diagnose.profile.collectives import arrived_last_counts
from ingero.diagnose.profile.idle import HOST, INPUT, LAUNCH, SYNC, UNATTRIBUTED
from ingero.diagnose.profile.intervals import united
from ingero.diagnose.profile.pacing import Pacing, pacing
from ingero.diagnose.profile.report import ProfileReport
from tests.unit.profiled_recording import Program, imported, profiles_of


def report_of(path: Path) -> ProfileReport:
    (report,) = profiles_of(path).reports
    return report


def test_overlapping_intervals_count_once_and_empty_ones_not() -> None:
    found = united(np.array([10, 0, 30, 5]), np.array([20, 12, 30, 6]))
    assert (found.begins.tolist(), found.ends.tolist()) == ([0], [20])
    assert found.of(15, 40) == 5
    assert found.of(-10, 0) == 0
    assert found.of(18, 12) == 0


def test_no_intervals_cover_nothing() -> None:
    nothing = united(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (nothing.total_ns, nothing.of(0, 100)) == (0, 0)


def test_busy_is_any_stream_of_the_main_gpu_from_its_first_activity_to_its_last(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(1, 3))
        program.launch(0.1, runs=(2, 5), stream=8)
        program.launch(8, runs=(9, 11))
    report = report_of(tmp_path / "a.db")
    assert (report.wall_ns, report.busy_ratio) == (10_000_000, pytest.approx(0.6))
    assert report.main_stream_busy_ratio == pytest.approx(0.4)
    assert (report.device, report.stream) == (0, 7)


def test_what_a_profiler_notes_for_a_wait_keeps_no_gpu_busy(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 1))
        program.sync_activity((1, 9))
        program.launch(9, runs=(9, 10))
    assert report_of(tmp_path / "a.db").busy_ratio == pytest.approx(0.2)


def test_every_ns_of_an_idle_gap_has_one_owner(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 2))
        program.call("cudaStreamSynchronize", 1, 1.5)  # returns 0.5 ms after the GPU was done
        program.range("data_loading", "next batch", 3, 6)
        program.range("range", "augment", 5, 7)
        program.launch(8, runs=(8.5, 10), took=0.1)
    report = report_of(tmp_path / "a.db")
    idle = {share.owner: share.idle_ns / 1e6 for share in report.idle if share.idle_ns}
    assert idle == {SYNC: 0.5, INPUT: 3.0, HOST: 1.0, LAUNCH: 0.5, UNATTRIBUTED: pytest.approx(1.5)}
    assert sum(idle.values()) == pytest.approx(6.5)


def test_only_the_thread_that_launches_next_owns_a_gap(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 2))
        program.range("data_loading", "prefetch", 0, 10, tid=701)
        program.launch(8, runs=(8, 10))
    report = report_of(tmp_path / "a.db")
    assert (report.idle_of(INPUT).idle_ns, report.idle_of(UNATTRIBUTED).idle_ns) == (0, 6_000_000)


def test_a_gap_whose_next_call_is_not_in_the_file_is_unattributed(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 2))
        program.range("data_loading", "next batch", 2, 8)
        program._activity("kernel", 7.77, (8, 10), 7)
    report = report_of(tmp_path / "a.db")
    assert report.idle_of(UNATTRIBUTED).idle_ns == 6_000_000


def test_a_pageable_copy_waits_as_long_as_the_gpu_is_busy_meanwhile(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 6))
        program.copy(1, took=7, runs=(6, 6.01), direction="gpu_to_host", size=8)
        program.launch(9, runs=(9, 10))
    report = report_of(tmp_path / "a.db")
    assert report.blocked["copy"] == pytest.approx(0.501)
    (wait,) = report.waits
    assert (wait.op, wait.host_memory, wait.count) == ("cudaMemcpyAsync", "pageable", 1)
    assert report.copy_only_ratio == pytest.approx(0.001)


def _fill_queue(program: Program, count: int) -> None:
    """Enqueues so many kernels of 0.1 ms in a tenth of the time."""
    for number in range(count):
        program.launch(number * 0.01, runs=(number * 0.1, number * 0.1 + 0.1))


def test_a_slow_launch_on_a_full_queue_waited_and_one_on_a_short_queue_did_not(tmp_path: Path) -> None:
    for count, blocked in ((1000, 1.0), (100, 0.0)):
        path = tmp_path / f"{count}.db"
        with imported(path) as recording:
            program = recording.program()
            _fill_queue(program, count)
            program.launch(count * 0.01, took=1, runs=(count * 0.1, count * 0.1 + 0.1))
        report = report_of(path)
        assert report.blocked["launch"] * report.wall_ns / 1e6 == pytest.approx(blocked)
        assert report.paced_by is Pacing.GPU  # never idle, whoever waits


@pytest.mark.parametrize(
    ("busy", "blocked", "expected"),
    [
        (0.58, 0.0, Pacing.HOST),
        (0.72, 0.10, Pacing.HOST),
        (0.98, 0.42, Pacing.GPU),
        (0.99, 0.0, Pacing.GPU),
        (0.80, 0.46, Pacing.GPU),
        (0.46, 0.29, Pacing.HOST),
        (0.53, 0.34, Pacing.MIXED),
        (0.84, 0.16, Pacing.MIXED),
        (0.95, None, Pacing.GPU),
        (0.35, None, Pacing.HOST),  # though threads may have waited as long as the GPU was busy
        (0.60, None, Pacing.UNKNOWN),
    ],
)
def test_who_waited_for_whom_sets_the_pace(busy: float, blocked: float | None, expected: Pacing) -> None:
    assert pacing(busy, blocked) is expected


def test_a_handful_of_kernels_has_no_pace(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        recording.program().launch(0, runs=(0, 9))
    assert report_of(tmp_path / "a.db").paced_by is Pacing.UNKNOWN


def test_slow_steps_are_not_counted_in_what_is_said_of_the_program(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        for number in range(4):
            program.step(number * 10, number * 10 + 10)
            program.launch(number * 10, runs=(number * 10, number * 10 + 9))
        program.step(40, 90)
        program.launch(40, runs=(40, 45))
        program.launch(85, runs=(85, 90))
    report = report_of(tmp_path / "a.db")
    assert [step.is_typical for step in report.steps] == [True] * 4 + [False]
    assert report.judged_busy_ratio == pytest.approx(0.9)
    assert report.busy_ratio == pytest.approx(46 / 90)
    assert [round(step.busy_ns / 1e6) for step in report.steps] == [9, 9, 9, 9, 10]


def test_steps_behind_the_end_of_a_cut_file_are_not_judged(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        for number in range(6):
            program.step(number * 10, number * 10 + 10)
        for number in range(4):
            program.launch(number * 10, runs=(number * 10, number * 10 + 9))
    report = report_of(tmp_path / "a.db")
    assert len(report.steps) == 6
    assert report.judged_busy_ratio == pytest.approx(0.9)


def test_the_line_of_idle_host_code_is_what_the_calls_around_it_share(tmp_path: Path) -> None:
    outer = ("/job/train.py", 30, "main")
    with imported(tmp_path / "a.db") as recording:
        program = recording.program()
        program.launch(0, runs=(0, 2), stack=[("/job/model.py", 5, "forward"), outer])
        program.launch(8, runs=(8, 10), stack=[("/job/model.py", 9, "backward"), outer])
    report = report_of(tmp_path / "a.db")
    (place,) = report.host_places
    assert str(place.line) == "main() at /job/train.py:30"
    assert place.idle_ns == pytest.approx(6e6, rel=0.01)


def _collective(program: Program, at: float, until: float, kernel: str = "ncclKernel_AllReduce_RING") -> None:
    program.launch(at, runs=(at, until), kernel=kernel, stream=20)


def test_the_rank_with_the_shortest_kernel_of_a_collective_came_last(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        for rank, arrivals in enumerate(((0, 12), (3, 10))):
            program = recording.program(700 + rank, rank=rank, gpu=rank)
            _collective(program, arrivals[0], 5)
            _collective(program, arrivals[1], 13)
    found = profiles_of(tmp_path / "a.db").collectives
    assert [(one.name, one.rank_of(one.last), one.wait_ns) for one in found] == [
        ("AllReduce", 1, 3_000_000),
        ("AllReduce", 0, 2_000_000),
    ]


def test_ranks_that_come_together_wait_for_nobody(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        for rank in (0, 1):
            _collective(recording.program(700 + rank, rank=rank, gpu=rank), rank * 0.005, 5)
    (one,) = profiles_of(tmp_path / "a.db").collectives
    assert (one.last, arrived_last_counts([one])) == (None, {})


def test_collectives_of_ranks_that_ran_different_ones_are_matched_by_their_end(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        first, second = (recording.program(700 + rank, rank=rank, gpu=rank) for rank in (0, 1))
        _collective(first, 1, 2)  # the other rank's part was cut off
        _collective(first, 3, 6)
        _collective(second, 5, 6.002)
        _collective(second, 7, 8, kernel="ncclKernel_Broadcast")
    (one,) = profiles_of(tmp_path / "a.db").collectives
    assert (one.rank_of(one.last), one.start_ns % 1_000_000_000) == (1, 3_000_000)


def test_ranks_wait_only_for_ranks_of_their_own_communicator(tmp_path: Path) -> None:
    with imported(tmp_path / "a.db") as recording:
        for rank, arrival in enumerate((0.0, 3.0, 8.0, 6.0)):
            program = recording.program(700 + rank, rank=rank, gpu=rank)
            program.communicator(rank + 1, comm_id_hash=11 + rank // 2)
            until = 5 if rank < 2 else 10
            name = "ncclDevKernel_AllReduce"
            program.launch(arrival, runs=(arrival, until), kernel=name, stream=20, communicator=rank + 1)
    found = profiles_of(tmp_path / "a.db").collectives
    assert [(one.rank_of(one.last), one.wait_ns / 1e6) for one in found] == [(1, 3.0), (2, 2.0)]
