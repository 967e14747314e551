"""Steps by repetition in the diagnosis: who paces them, what a slow one lost, and which intervals are steps at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, FindingKind
from ingero.diagnose.steps.pacing import PacedBy, paced_by
from ingero.events import SyncIntervalFlag
from ingero.step_counts import How
from ingero.store.reader import open_reader
from ingero.store.records import Window
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

HOST_BOUND = RepeatedStep(host_ms=6.0, blocked={"copy": 0.1})
GPU_BOUND = RepeatedStep(host_ms=3.0, blocked={"launch": 4.0})
ALL = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + int(LENGTH_S * 1e9))


def diagnosed(folder: Path, usual: RepeatedStep, slow: RepeatedStep) -> Diagnosis:
    """A trainer that never waits for its stream, slow in the second half."""
    with ScriptedRun(folder / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, QUIET_S, usual)
        add_steps(run, trainer, QUIET_S, LENGTH_S, slow)
    return diagnosed_file(folder / "scene.db")


def verdict(diagnosis: Diagnosis) -> str:
    return diagnosis.verdicts[0].text


@pytest.mark.parametrize(
    ("step", "pace"),
    [
        (HOST_BOUND, PacedBy.HOST),
        (GPU_BOUND, PacedBy.GPU),
        (RepeatedStep(host_ms=6.0, blocked={"sync": 1.0}), PacedBy.MIXED),
        (RepeatedStep(flags=SyncIntervalFlag.UNTIMED), PacedBy.UNKNOWN),
        (RepeatedStep(host_ms=3.0, blocked={"sync": 4.0}, flags=SyncIntervalFlag.UNTIMED), PacedBy.GPU),
    ],
)
def test_the_share_of_blocked_time_tells_who_paces(tmp_path: Path, step: RepeatedStep, pace: PacedBy) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        add_steps(run, run.process(100, "python"), 0, 2, step)
    with open_reader(tmp_path / "scene.db") as reader:
        (gpu_stream,) = reader.step_gpu_streams(ALL)
        assert paced_by(gpu_stream.sync_intervals) is pace
        assert paced_by(reader.steps(ALL, process=gpu_stream.process)) is pace


def test_clocks_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        add_steps(run, run.process(100, "python"), 0, 2, RepeatedStep(host={"runq": 1.0}, blocked={"copy": 2.0}))
    with open_reader(tmp_path / "scene.db") as reader:
        steps = reader.steps(ALL, process=1)
    length = steps["sync_end_ns"] - steps["prev_sync_end_ns"]
    assert (steps["idle_state_ns"].sum(axis=1) == steps["idle_ns"]).all()
    assert (steps["sync_state_ns"].sum(axis=1) == steps["busy_ns"]).all()
    assert (steps["idle_ns"] + steps["busy_ns"] == length).all()


def test_steps_without_a_loss_say_who_paces_and_that_idle_is_not_known(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, HOST_BOUND, HOST_BOUND)
    assert causes(diagnosis) == []
    assert verdict(diagnosis).startswith("host-bound: blocked on the GPU 2% of step time")
    assert "no lost time" in verdict(diagnosis)


def test_a_verdict_says_how_many_steps_it_is_of_and_how_they_are_known(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        add_steps(run, run.process(100, "python"), 0, LENGTH_S, replace(HOST_BOUND, noise=0))
        run.train(run.process(200, "synced"), 0, LENGTH_S, Step(noise=0))
        both = run.process(300, "both")  # each of its steps ends with a sync, which is what it is judged by
        run.train(both, 0, LENGTH_S, Step(noise=0, idle_ms=1.0, busy_ms=9.0, return_delay_ms=0.0, launches=153))
        add_steps(run, both, 0, LENGTH_S, RepeatedStep(host_ms=8.0, blocked={"sync": 2.0}, syncs=1, noise=0))
    found = {one.name: one for one in diagnosed_file(path).verdicts}
    counted = round(LENGTH_S * 1000 / 6.1)
    assert (found["python"].how, found["python"].steps) == (How.REPETITION, pytest.approx(counted, abs=1))
    assert (found["synced"].how, found["synced"].steps) == (How.SYNC, pytest.approx(LENGTH_S * 1000 / 6.55, abs=1))
    assert (found["both"].how, found["both"].steps) == (How.BOTH, pytest.approx(LENGTH_S * 100, abs=1))
    assert found["both"].gpu_idle is not None
    assert found["both"].gpu_idle.low == pytest.approx(0.10, abs=0.001)


def test_a_host_that_waits_for_a_cpu_loses_that_time(tmp_path: Path) -> None:
    slow = RepeatedStep(host_ms=9.0, host={"runq": 3.0}, blocked={"copy": 0.1})
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, QUIET_S, HOST_BOUND)
        for begin_s in add_steps(run, trainer, QUIET_S, LENGTH_S, slow):
            run.off_cpu(trainer, begin_s, begin_s + 0.003, "runq", culprit=(200, "hog"))
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(trainer, 200, "hog", second, 330.0)
    diagnosis = diagnosed_file(tmp_path / "scene.db")
    assert causes(diagnosis) == ["cpu-contention"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ns == pytest.approx(2.0e9, rel=0.05)
    assert "host.runq" in incident.breakdown
    assert incident.culprits[0].name == "hog"


def test_what_a_host_loses_while_it_still_waits_for_the_gpu_costs_nothing(tmp_path: Path) -> None:
    held_up = RepeatedStep(host_ms=5.0, host={"runq": 2.0}, blocked={"launch": 2.0})
    diagnosis = diagnosed(tmp_path, GPU_BOUND, held_up)
    assert causes(diagnosis) == []
    assert verdict(diagnosis).startswith("GPU-bound: blocked on the GPU")


def test_a_step_that_grew_while_it_waited_for_the_gpu_is_the_gpus_doing(tmp_path: Path) -> None:
    slow = RepeatedStep(host_ms=3.5, host={"runq": 0.5}, blocked={"launch": 6.0})
    diagnosis = diagnosed(tmp_path, GPU_BOUND, slow)
    (incident,) = diagnosis.incidents
    assert set(incident.breakdown) == {"blocked.gpu_execution"}
    assert incident.lost_ns == pytest.approx(LENGTH_S / 2 * 1e9 * 2.5 / 9.5, rel=0.05)


def test_a_stall_beyond_what_the_gpu_still_had_to_do_is_the_hosts(tmp_path: Path) -> None:
    stalled = RepeatedStep(host_ms=13.0, host={"stopped": 10.0})
    diagnosis = diagnosed(tmp_path, GPU_BOUND, stalled)
    (incident,) = diagnosis.incidents
    assert max(incident.breakdown, key=lambda place: incident.breakdown[place]) == "host.stopped"
    assert incident.lost_ns == pytest.approx(LENGTH_S / 2 * 1e9 * 6.0 / 13.0, rel=0.05)


def test_steps_of_another_type_are_no_slower_steps(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, HOST_BOUND, RepeatedStep(host_ms=12.0, blocked={"copy": 0.2}, launches=306))
    assert causes(diagnosis) == []


def test_time_on_a_full_queue_that_was_not_measured_is_not_the_programs_own(tmp_path: Path) -> None:
    slow = RepeatedStep(host_ms=10.0, flags=SyncIntervalFlag.UNTIMED)
    diagnosis = diagnosed(tmp_path, GPU_BOUND, slow)
    assert all(one.cause in ("unexplained", "gpu-slower") for one in diagnosis.incidents)
    assert not any("run" in place for one in diagnosis.incidents for place in one.breakdown)


def test_a_loop_that_begins_to_look_at_its_loss_in_each_step_is_told_so(tmp_path: Path) -> None:
    looks = RepeatedStep(host_ms=6.0, blocked={"sync": 4.0}, syncs=1, step_type="153 launches, 2 copies")
    diagnosis = diagnosed(tmp_path, HOST_BOUND, looks)
    assert causes(diagnosis) == ["unexpected-sync"]
    assert diagnosis.incidents[0].lost_ns == pytest.approx(LENGTH_S / 2 * 1e9 * 3.9 / 10.0, rel=0.05)


def test_steps_that_are_cut_in_two_are_no_more_waits(tmp_path: Path) -> None:
    half = RepeatedStep(host_ms=3.6, launches=77, blocked={"copy": 0.05}, step_type="77 launches, 1 copies")
    assert "unexpected-sync" not in causes(diagnosed(tmp_path, HOST_BOUND, half))


def test_a_look_at_the_loss_now_and_then_is_no_loss(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s in np.arange(0, LENGTH_S, 1.0).tolist():
            add_steps(run, trainer, begin_s, begin_s + 0.95, HOST_BOUND)
            looks = RepeatedStep(host_ms=6.0, blocked={"sync": 44.0}, syncs=1, step_type="153 launches, 2 copies")
            add_steps(run, trainer, begin_s + 0.95, begin_s + 1.0, looks)
    assert causes(diagnosed_file(tmp_path / "scene.db")) == []


def test_what_a_healthy_host_computes_is_no_bottleneck(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, RepeatedStep(host_ms=8.0), RepeatedStep(host_ms=8.0))
    assert not [one for one in diagnosis.incidents if one.kind is FindingKind.BOTTLENECK]


PAUSE = (("/srv/job/train.py", 95, "pause"),)
ACCURACY = (("/srv/job/metrics.py", 12, "accuracy"), ("/srv/job/train.py", 90, "main"))


@pytest.mark.parametrize(
    ("percent", "slept_ms", "lost"),
    [
        (45, 0.0, 0.457),  # NVML's error: one second of twelve, and its whole numbers
        (45, 1.0, 0.457),  # a part asleep, which may have been idle time, too
        (80, 0.0, None),  # a loop computes and launches for so much of its time anyway
        (None, 0.0, None),
    ],
)
def test_what_a_host_computes_is_a_bottleneck_where_nvml_sees_no_kernel(
    tmp_path: Path, percent: int | None, slept_ms: float, lost: float | None
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        step = RepeatedStep(host_ms=8.0, host={"sleep": slept_ms}, blocked={"copy": 0.1})
        for number, begin_s in enumerate(add_steps(run, trainer, 0, LENGTH_S, step)):
            if number % 4 == 0:
                run.sample(trainer, begin_s + 0.002, ACCURACY)
            if slept_ms:
                run.off_cpu(
                    trainer, begin_s + 0.004, begin_s + 0.004 + slept_ms / 1e3, "sleep", waker="timer", stack=PAUSE
                )
        for second in range(int(LENGTH_S)) if percent is not None else ():
            run.gpu(second + 0.5, percent=percent or 0, processes=[(100, 1 << 30)])
    found = {one.cause: one for one in diagnosed_file(path).incidents}
    if lost is None:
        assert not found
        return
    assert found["host-bound"].kind is FindingKind.BOTTLENECK
    assert str(found["host-bound"].line) == "accuracy() at /srv/job/metrics.py:12"
    assert found["host-bound"].lost_ratio == pytest.approx(lost - slept_ms / 8.1, abs=0.02)
    if slept_ms:
        assert found["sleep-in-loop"].lost_ratio == pytest.approx(slept_ms / 8.1, abs=0.02)


def paced(folder: Path, step: Step, *, stream: int = 0) -> bool:
    """Whether the steps by repetition pace a program that also waits for a stream."""
    with ScriptedRun(folder / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, LENGTH_S, HOST_BOUND)
        run.train(trainer, 0, LENGTH_S, step, stream=stream)
    with open_reader(folder / "scene.db") as reader:
        return Evidence(reader, ALL).main_streams[1].is_steps


def test_a_stream_that_is_waited_for_once_a_step_is_exact(tmp_path: Path) -> None:
    assert not paced(tmp_path, Step(idle_ms=0.5, busy_ms=5.5, launches=153))


def test_a_copy_stream_is_not_the_one_that_paces(tmp_path: Path) -> None:
    assert paced(tmp_path, Step(idle_ms=0.5, busy_ms=5.5, launches=1), stream=7)


def test_a_stream_that_is_waited_for_several_times_a_second_is_exact(tmp_path: Path) -> None:
    assert not paced(tmp_path, Step(idle_ms=0.5, busy_ms=120.0, launches=3_060))  # one wait in twenty steps


def test_a_wait_in_a_hundred_steps_ends_no_step(tmp_path: Path) -> None:
    assert paced(tmp_path, Step(idle_ms=0.5, busy_ms=609.0, launches=15_300))


def test_a_stream_cut_short_by_others_that_launch_more_is_not_judged(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S, Step(launches=1), calls={"cudaLaunchKernel": (80.0, 0.005)})
    with open_reader(tmp_path / "scene.db") as reader:
        assert Evidence(reader, ALL).main_streams  # whole: judged
        partial = Evidence(reader, ALL)
        gpu_streams = partial.read_gpu_streams()
        for gpu_stream in gpu_streams:
            gpu_stream.sync_intervals["flags"] |= int(SyncIntervalFlag.PARTIAL)
        partial.read_gpu_streams = lambda: gpu_streams  # type: ignore[method-assign]
        assert partial.main_streams == {}


def test_a_sleep_inside_a_call_that_waits_for_the_gpu_is_on_no_path(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.off_cpu(trainer, 1.0, 1.1, "sleep", waker="interrupt", is_gpu_call=True)
        run.off_cpu(trainer, 1.2, 1.3, "sleep", waker="timer")
    with open_reader(tmp_path / "scene.db") as reader:
        waits = Evidence(reader, ALL).critical_paths
        at = [BEGIN_NS + int(second * 1e9) for second in (1, 2)]
        assert len(waits.path(100, *at)) == 2
        assert [one.waker_kind for one in waits.path(100, *at, outside_gpu_calls=True)] == ["timer"]


def test_a_thread_that_launches_for_the_one_that_waits_holds_no_lock(tmp_path: Path) -> None:
    autograd = 101
    slow = RepeatedStep(host_ms=9.0, host={"sleep": 6.0}, blocked={"copy": 0.1})
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        thread = replace(trainer, pid=autograd)
        add_steps(run, trainer, 0, QUIET_S, RepeatedStep(host={"sleep": 3.0}, blocked={"copy": 0.1}))
        for begin_s in add_steps(run, trainer, QUIET_S, LENGTH_S, slow):
            run.off_cpu(trainer, begin_s, begin_s + 0.006, "sleep", waker=thread)
            run.off_cpu(trainer, begin_s + 0.0061, begin_s + 0.0065, "sleep", waker=trainer, tid=autograd)
            run.call(trainer, "cudaLaunchKernel", begin_s + 0.001, 0.01, tid=autograd)
    assert "lock-contention" not in causes(diagnosed_file(tmp_path / "scene.db"))


def logging_loop(run: ScriptedRun, begin_s: float, end_s: float, *, slow: float = 1.0) -> None:
    """GPU-bound steps of 30 ms; every hundredth waits for its lost time, then the host fills the queue again."""
    trainer, at_s = run.process(100, "python") if begin_s == 0 else Actor(number=1, pid=100, name="python"), begin_s
    usual = RepeatedStep(host_ms=5.0, blocked={"launch": 25.0 * slow}, launches=60)
    wait = RepeatedStep(
        host_ms=5.0, blocked={"sync": 510.0 * slow}, launches=60, syncs=1, step_type="with its lost time"
    )
    refill = RepeatedStep(host_ms=5.0, launches=60)
    while at_s < end_s:
        for step, count in ((refill, 17), (usual, 82), (wait, 1)):
            length_s = count * (step.host_ms + sum(step.blocked.values())) / 1e3
            add_steps(run, trainer, at_s, at_s + length_s, step)
            at_s += length_s


def test_steps_that_fill_an_emptied_queue_are_no_measure_of_the_gpu(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        logging_loop(run, 0, LENGTH_S)
    assert causes(diagnosed_file(tmp_path / "scene.db")) == []


def test_a_host_that_becomes_too_slow_to_fill_the_queue_is_judged(tmp_path: Path) -> None:
    """It reads its lost time now and then, and is never blocked in the steps behind."""
    starved = RepeatedStep(host_ms=45.0, host={"sleep": 40.0}, launches=60)
    wait = replace(starved, blocked={"sync": 1.0}, syncs=1, step_type="with its lost time")
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        logging_loop(run, 0, LENGTH_S / 2)
        trainer, at_s = Actor(number=1, pid=100, name="python"), LENGTH_S / 2
        while at_s < LENGTH_S:
            for step, count in ((wait, 1), (starved, 99)):
                length_s = count * (step.host_ms + sum(step.blocked.values())) / 1e3
                add_steps(run, trainer, at_s, min(at_s + length_s, LENGTH_S), step)
                at_s += length_s
    assert sum(one.lost_ratio for one in diagnosed_file(tmp_path / "scene.db").incidents) > 0.1


def test_a_slower_gpu_is_told_of_a_loop_that_empties_its_queue_now_and_then(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        logging_loop(run, 0, LENGTH_S / 2)
        logging_loop(run, LENGTH_S / 2, LENGTH_S, slow=1.5)
    assert causes(diagnosed_file(tmp_path / "scene.db")) == ["gpu-slower"]


PAUSE = (("/srv/job/train.py", 95, "pause"),)
METRICS = (("/srv/job/metrics.py", 12, "compute_metrics"), ("/srv/job/train.py", 90, "main"))


def test_a_host_is_colder_only_as_far_as_its_launches_say_so_too(tmp_path: Path) -> None:
    """1.5 ms a step more at a line of the program; the copy of each step takes 1.3x as long, no launch does."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, QUIET_S, HOST_BOUND)
        for begin_s in add_steps(run, trainer, QUIET_S, LENGTH_S, replace(HOST_BOUND, host_ms=7.5))[::7]:
            run.sample(trainer, begin_s + 0.001, METRICS)
        for second in range(int(LENGTH_S)):
            is_slow = second >= QUIET_S
            steps = 131 if is_slow else 164
            run.op(trainer, "cudaMemcpyAsync", second, steps, 0.013 * (1.3 if is_slow else 1))
            run.op(trainer, "cudaLaunchKernel", second, 153 * steps, 0.005)
    assert causes(diagnosed_file(tmp_path / "scene.db")) == ["host-bound"]


def test_calls_that_were_only_counted_say_nothing_of_how_cold_a_host_was(tmp_path: Path) -> None:
    """The durations of launches were given up while steps were quick, those of two thirds of the copies, too."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, QUIET_S, HOST_BOUND)
        for begin_s in add_steps(run, trainer, QUIET_S, LENGTH_S, replace(HOST_BOUND, host_ms=7.5))[::7]:
            run.sample(trainer, begin_s + 0.001, METRICS)
        for second in range(int(LENGTH_S)):
            is_slow = second >= QUIET_S
            steps = 131 if is_slow else 164
            run.op(
                trainer,
                "cudaMemcpyAsync",
                second,
                3 * steps,
                0.013,
                **_given_up(0 if is_slow else 2 * steps, steps, 0.013),
            )
            launches = 153 * steps
            timed = launches if is_slow else 0
            run.op(trainer, "cudaLaunchKernel", second, launches, 0.005, **_given_up(launches - timed, timed, 0.005))
    assert causes(diagnosed_file(tmp_path / "scene.db")) == ["host-bound"]


def _given_up(untimed: int, timed: int, ms: float) -> dict[str, int]:
    return {"untimed": untimed, "sum_ns": int(timed * ms * 1e6), "run_ns": int(timed * ms * 1e6)}
