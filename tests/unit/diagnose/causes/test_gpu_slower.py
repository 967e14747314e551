"""gpu-slower: the same work took the GPU longer; abstains where the class does different work each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import UNEXPLAINED
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file


def test_more_device_time_for_the_same_work_is_named(tmp_path: Path) -> None:
    def slower(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9))

    diagnosis = diagnosed(tmp_path, slower)
    assert causes(diagnosis) == ["gpu-slower"]
    assert diagnosis.incidents[0].evidence["slowdown"] == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize(("percent", "expected"), [(98, ["gpu-slower"]), (73, [UNEXPLAINED])])
def test_steps_by_repetition_are_slower_on_a_gpu_only_that_worked_for_longer(
    tmp_path: Path, percent: int, expected: list[str]
) -> None:
    """Where it did not, something let it run dry, which nothing but the driver tells."""

    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.uses_gpu(trainer)
        add_steps(run, trainer, 0, QUIET_S, RepeatedStep(host_ms=3.0, blocked={"launch": 4.0}))
        add_steps(run, trainer, QUIET_S, LENGTH_S, RepeatedStep(host_ms=3.0, blocked={"launch": 6.5}))
        for second in range(int(LENGTH_S)):
            run.gpu(second + 1, percent=98 if second < QUIET_S else percent)
    assert causes(diagnosed_file(tmp_path / "scene.db")) == expected


def test_a_slower_link_leaves_kernels_less_time(tmp_path: Path) -> None:
    """NVML counts kernels only: where enough is copied, less of them does not prove that the GPU was idle."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.uses_gpu(trainer)
        run.train(trainer, 0, QUIET_S, Step(size_bytes=1 << 26))
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9, size_bytes=1 << 26))
        for second in range(int(LENGTH_S)):
            run.gpu(second + 1, percent=90 if second < QUIET_S else 60)
    (incident,) = diagnosed_file(tmp_path / "scene.db").incidents
    assert incident.cause == "gpu-slower"
    assert "or the link to it" in incident.summary


def test_ranks_that_each_see_one_gpu_are_told_by_the_number_of_the_driver(tmp_path: Path) -> None:
    """Each calls its own "device 0": two slower GPUs are two incidents, and neither is GPU 0."""

    def slower(run: ScriptedRun, trainer: Actor) -> None:
        other = run.process(200, "python")
        for actor, index in ((trainer, 3), (other, 5)):
            run.append(tables.PROCESS_GPUS, process=actor.number, ordinal=0, uuid=f"GPU-{index}")
            for second in range(int(LENGTH_S)):
                run.gpu(second + 0.5, uuid=f"GPU-{index}", index=index)
        run.train(other, 0, QUIET_S, Step())
        run.train(other, QUIET_S, LENGTH_S, Step(busy_ms=12))
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9))

    found = sorted(diagnosed(tmp_path, slower).incidents, key=lambda one: one.root)
    assert [(one.cause, one.root, len(one.affected)) for one in found] == [
        ("gpu-slower", "GPU-3", 1),
        ("gpu-slower", "GPU-5", 1),
    ]
    assert ["because GPU 3 took 1.5x" in found[0].summary, "because GPU 5 took" in found[1].summary] == [
        True,
        True,
    ]


def test_a_class_that_varies_anyway_gets_no_verdict_about_the_device(tmp_path: Path) -> None:
    def varied(run: ScriptedRun, trainer: Actor) -> None:
        for begin in range(int(QUIET_S), int(LENGTH_S)):
            run.train(trainer, begin, begin + 1, Step(noise=0.6, size_bytes=1 << 26))

    assert causes(diagnosed(tmp_path, varied)) == []


def growing(run: ScriptedRun, trainer: Actor) -> None:
    """The same launches take the GPU a little longer in each step, until they take it half as long again."""
    for part in range(60):
        begin = QUIET_S + part / 10
        run.train(trainer, begin, begin + 0.1, Step(busy_ms=6 + part / 20))


def test_steps_that_grow_little_by_little_have_more_to_do(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, growing)) == []


def test_sequences_that_grow_and_begin_anew_have_more_to_do(tmp_path: Path) -> None:
    def sawtooth(run: ScriptedRun, trainer: Actor) -> None:
        for part in range(60):
            begin = QUIET_S + part / 10
            run.train(trainer, begin, begin + 0.1, Step(busy_ms=6 + part % 30 / 10))

    assert causes(diagnosed(tmp_path, sawtooth)) == []


def test_longer_steps_of_one_class_with_as_many_more_bytes_are_more_work(tmp_path: Path) -> None:
    def longer(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9, size_bytes=3 << 19))

    assert causes(diagnosed(tmp_path, longer)) == []


def test_a_device_that_is_slower_beyond_what_the_bytes_grew_by_is_named(tmp_path: Path) -> None:
    def slower(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9, size_bytes=9 << 17))

    assert causes(diagnosed(tmp_path, slower)) == ["gpu-slower"]


def test_without_sync_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"sync_intervals": "no return probes"})
    assert "gpu-slower" in {one.cause for one in diagnosis.not_evaluated}
