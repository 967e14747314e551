"""verdicts: GPU-bound needs a device that was busy and a host that is seen to wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.serve.text.findings_text import headline
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.units import SECOND_NS
from tests.unit.diagnose.causes.blinded import without
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed_file


def diagnosed_steps(folder: Path, first: Step, second: Step | None = None) -> Diagnosis:
    """A trainer that does the same all the time, or something else in the second half."""
    with ScriptedRun(folder / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S / 2, first)
        run.train(trainer, LENGTH_S / 2, LENGTH_S, second or first)
    return diagnosed_file(folder / "scene.db")


def verdict_of(diagnosis: Diagnosis) -> str:
    return diagnosis.verdicts[0].text


def test_a_host_that_waits_for_a_busy_device_is_gpu_bound(tmp_path: Path) -> None:
    text = verdict_of(diagnosed_steps(tmp_path, Step(idle_ms=0.1, busy_ms=9, launch_ms=1)))
    assert text.startswith("GPU-bound: no host-side cause (GPU busy 98%")


@pytest.mark.parametrize(("theirs", "is_said"), [("GPU-0", True), ("GPU-1", False), ("", False)])
def test_a_process_that_always_shared_its_gpu_is_said_to_have(tmp_path: Path, theirs: str, *, is_said: bool) -> None:
    """As two ranks do that both take the first GPU: neither has a better time to be compared with."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        for pid, uuid in ((100, "GPU-0"), (200, theirs)):
            process = run.process(pid, "python")
            if uuid:
                run.uses_gpu(process, uuid)
            run.train(process, 0, LENGTH_S, Step(idle_ms=0.1, busy_ms=9, launch_ms=1))
    diagnosis = diagnosed_file(tmp_path / "scene.db")
    assert causes(diagnosis) == []
    assert ("others had work on the same GPU meanwhile: python [200] 9" in verdict_of(diagnosis)) is is_said


def with_utilization(folder: Path, percents: Sequence[int], *, pids: Sequence[int] = (100,)) -> str:
    """The verdict on a trainer with work queued 98% of the time, beside what NVML said second by second."""
    with ScriptedRun(folder / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S, Step(idle_ms=0.1, busy_ms=9, launch_ms=1))
        for at_s, percent in zip(range(1, int(LENGTH_S) + 1), percents, strict=False):
            run.gpu(at_s - 0.5, percent=percent, processes=[(pid, 1 << 30) for pid in pids])
    return verdict_of(diagnosed_file(folder / "scene.db"))


def test_a_gpu_on_which_kernels_ran_less_than_work_was_queued_is_not_called_busy(tmp_path: Path) -> None:
    text = with_utilization(tmp_path, [58, 62] * 20)
    assert "GPU-bound" not in text
    assert "work was queued or running 98% of wall time, but the GPU is less busy" in text
    assert "NVML: a kernel ran 60% of the same seconds, in the rest the GPU was idle or copied" in text


@pytest.mark.parametrize("percents", [[97] * 40, [92, 100] * 20])
def test_where_nvml_says_the_same_within_its_error_both_are_shown(percents: list[int], tmp_path: Path) -> None:
    text = with_utilization(tmp_path, percents)
    assert text.startswith("GPU-bound: no host-side cause (GPU busy 98% of wall time; NVML: a kernel ran 9")


def test_a_few_seconds_of_utilization_prove_nothing(tmp_path: Path) -> None:
    assert with_utilization(tmp_path, [10, 10, 10]).startswith("GPU-bound")


def test_with_several_processes_on_a_gpu_kernels_may_be_of_any(tmp_path: Path) -> None:
    assert "NVML: a kernel of any process ran 60% of the same seconds" in with_utilization(
        tmp_path, [60] * 40, pids=(100, 200)
    )


def test_a_host_that_enqueues_most_of_the_time_proves_nothing_about_the_device(tmp_path: Path) -> None:
    text = verdict_of(diagnosed_steps(tmp_path, Step(idle_ms=0.1, busy_ms=9, launch_ms=5)))
    assert "GPU-bound" not in text
    assert "not proven" in text


def test_a_device_with_idle_time_is_not_gpu_bound(tmp_path: Path) -> None:
    text = verdict_of(diagnosed_steps(tmp_path, Step(idle_ms=0.9, busy_ms=6, launch_ms=1)))
    assert "GPU-bound" not in text


@pytest.mark.parametrize("launches", [4_000, 50_000])
def test_launches_that_wait_for_a_full_queue_are_gpu_bound(tmp_path: Path, launches: int) -> None:
    busy = launches * 0.004
    step = Step(idle_ms=0.1, busy_ms=busy, launch_ms=busy - 1024 * 0.004, launches=launches, noise=0.0005)
    diagnosis = diagnosed_steps(tmp_path, step)
    assert causes(diagnosis) == []
    assert verdict_of(diagnosis).startswith("GPU-bound")
    assert "queue was full" in verdict_of(diagnosis)


def test_as_many_launches_that_the_device_waits_for_are_not(tmp_path: Path) -> None:
    step = Step(idle_ms=0.1, busy_ms=200.0, launch_ms=199.9, launches=50_000)
    diagnosis = diagnosed_steps(tmp_path, step)
    assert "GPU-bound" not in verdict_of(diagnosis)


def test_without_sync_intervals_nothing_is_called_gpu_bound_or_full(tmp_path: Path) -> None:
    busy = 4_000 * 0.004
    step = Step(idle_ms=0.1, busy_ms=busy, launch_ms=busy - 1024 * 0.004, launches=4_000)
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S, not_traced={"sync_intervals": "no return probes"}) as run:
        run.train(run.process(100, "python"), 0, LENGTH_S, step)
    diagnosis = diagnosed_file(without(tmp_path / "scene.db", "sync_intervals"))
    assert diagnosis.verdicts == ()
    assert headline(diagnosis).startswith("No verdict")


def test_launches_that_wait_longer_because_the_device_is_slower_are_its_doing(tmp_path: Path) -> None:
    usual, slow = (
        Step(idle_ms=0.1, busy_ms=ms, launch_ms=ms - 1024 * ms / 4_000, launches=4_000, noise=0.0005)
        for ms in (16.0, 20.0)
    )
    diagnosis = diagnosed_steps(tmp_path, usual, slow)
    assert causes(diagnosis) == ["gpu-slower"]
    assert verdict_of(diagnosis).endswith("see incidents above")


def test_a_process_that_never_waits_for_the_device_is_told_that_its_steps_have_no_end(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for second in range(int(LENGTH_S)):
            run.op(trainer, "cudaLaunchKernel", second, 5_000, 0.005)
    diagnosis = diagnosed_file(tmp_path / "scene.db")
    assert causes(diagnosis) == []
    assert "60,000 launches but no GPU sync, and no repeated step was found" in verdict_of(diagnosis)


def test_a_part_of_the_recording_without_the_end_of_a_step_does_not_say_so(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 3, Step(busy_ms=2_900.0), calls={"cudaLaunchKernel": (80.0, 0.005)})
        run.op(trainer, "cudaLaunchKernel", 8, 5_000, 0.005)
        run.op(trainer, "cudaStreamSynchronize", 8, 1, 900.0)
    with open_reader(tmp_path / "scene.db") as reader:
        part = Window(begin_ns=BEGIN_NS + 8 * SECOND_NS, end_ns=BEGIN_NS + 9 * SECOND_NS)
        assert diagnose(reader, part).verdicts == ()
