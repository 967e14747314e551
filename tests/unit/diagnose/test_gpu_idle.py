"""How long the GPU was idle at least and at most: what each source proves, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.steps.gpu_idle import GpuIdle, gpu_idle
from ingero.events import SyncIntervalFlag
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.writing import tables

SECONDS = 10.0
ALL = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + int(SECONDS * 1e9) + 1)
# of 10 ms: 2 nothing queued, 1 launching, 5 waited for, 2 done and not returned
SYNCED = Step(idle_ms=2, launch_ms=1, busy_ms=6, return_delay_ms=2, noise=0)
UNSYNCED = RepeatedStep(host_ms=6.0, blocked={"launch": 4.0}, noise=0)
COPY_STREAM = 7
DEPTH = 1022
MARK_GAP_S = 0.004


def known(path: Path) -> GpuIdle:
    with open_reader(path) as reader:
        evidence = Evidence(reader, ALL)
        return gpu_idle(evidence, evidence.processes[next(iter(evidence.gpu_streams))])


def of_syncs(folder: Path, step: Step = SYNCED, *, percent: int | None = None) -> GpuIdle:
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, SECONDS, step)
        for second in range(int(SECONDS) if percent is not None else 0):
            run.gpu(second + 0.5, percent=percent or 0, processes=[(100, 1 << 30)])
    return known(path)


def add_marks(
    run: ScriptedRun, actor: Actor, begin_s: float, end_s: float, *, blocked_ms: float, first: int = 5000
) -> int:
    """Launches that waited for room in a full queue, one each 4 ms; the position after the last one."""
    position = first
    for number in range(int((end_s - begin_s) / MARK_GAP_S)):
        position += 100
        run.append(
            tables.PROGRESS_MARKS,
            process=actor.number,
            device=0,
            stream=0,
            kind=run.text("full_queue"),
            time_ns=run.at(begin_s + number * MARK_GAP_S),
            position=position,
            queued=position + DEPTH,
            blocked_ns=int(blocked_ms * 1e6),
        )
    return position


def test_syncs_prove_what_lay_before_the_launches_and_after_the_gpu_was_done(tmp_path: Path) -> None:
    found = of_syncs(tmp_path)
    assert found.low == pytest.approx(0.40, abs=0.001)
    assert found.high == pytest.approx(0.50, abs=0.001)
    assert found.words == "GPU idle between 40 and 50% of the time (by sync intervals)"


def test_bounds_that_meet_are_one_figure(tmp_path: Path) -> None:
    found = of_syncs(tmp_path, replace(SYNCED, launch_ms=0.05))
    assert found.is_exact
    assert found.words == "GPU idle 40% of the time (by sync intervals)"


@pytest.mark.parametrize(
    "flag", [SyncIntervalFlag.PARTIAL, SyncIntervalFlag.FIRST_UNKNOWN | SyncIntervalFlag.ENQUEUES_UNSEEN]
)
def test_nothing_is_idle_for_certain_where_other_work_may_have_been_queued(
    tmp_path: Path, flag: SyncIntervalFlag
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, SECONDS, UNSYNCED)
        run.train(trainer, 0, 1, replace(SYNCED, flags=int(flag)))
    found = known(path)
    assert found.low == 0
    assert "at least" not in found.words


def test_a_time_that_starts_with_the_end_of_another_interval_counts_only_if_that_one_is_known(tmp_path: Path) -> None:
    """The first interval of a stream says when the stream was done, but not that it was empty before its launches."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, SECONDS, UNSYNCED)
        run.train(trainer, 4, 4.01, SYNCED)
    assert known(path).low * SECONDS == pytest.approx(0.002, abs=1e-6)  # returned 2 ms late, once


def test_work_on_a_copy_stream_is_no_idle_time(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, SECONDS, SYNCED)
        # its first 2 of 10 ms have work: just while the other stream has none
        copies = Step(idle_ms=0, launch_ms=0, busy_ms=2, return_delay_ms=8, noise=0, launches=1)
        run.train(trainer, 0, SECONDS, copies, stream=COPY_STREAM)
    assert known(path).low == pytest.approx(0.20, abs=0.001)


def test_a_queue_that_is_always_full_leaves_no_idle_time(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, SECONDS, UNSYNCED)
        add_marks(run, trainer, 0, SECONDS, blocked_ms=2)
    found = known(path)
    assert found.low == 0
    assert found.high == pytest.approx(0, abs=0.002)
    assert found.words == "GPU idle at most 0.0% of the time (by progress marks)"


def test_a_program_that_hardly_ever_syncs_has_a_bound_from_each_source(tmp_path: Path) -> None:
    """For 2 of 10 s it syncs, which shows 40% of these idle; for 6 s its queue is full; of 2 s nothing is known."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, SECONDS, UNSYNCED)
        run.train(trainer, 0, 2, SYNCED)
        add_marks(run, trainer, 2, 8, blocked_ms=2)
    found = known(path)
    assert found.low == pytest.approx(0.08, abs=0.001)
    assert found.high == pytest.approx(0.40, abs=0.002)
    assert found.words == (
        "GPU idle between 8.0 and 40% of the time (at least by sync intervals, at most by progress marks)"
    )


def test_nvml_bounds_it_from_above_where_the_process_is_alone_on_its_gpu(tmp_path: Path) -> None:
    found = of_syncs(tmp_path, replace(SYNCED, idle_ms=0.1, launch_ms=8, busy_ms=9.8, return_delay_ms=0.1), percent=93)
    assert found.high_from == "NVML"
    assert found.high == pytest.approx(0.07 + 0.01 + 0.1, abs=0.005)  # its rounding, and a second of ten
    assert found.words == "GPU idle between 2.0 and 18% of the time (at least by sync intervals, at most by NVML)"


def test_a_host_that_never_waits_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=SECONDS) as run:
        add_steps(run, run.process(100, "python"), 0, SECONDS, RepeatedStep(host_ms=6.0, blocked={"copy": 0.1}))
    assert known(path).words == ""
