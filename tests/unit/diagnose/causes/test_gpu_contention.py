"""gpu-contention: slower with another process's work on the same device; silent where the other does not explain it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

OTHERS = Step(idle_ms=0.5, busy_ms=15, launches=200)


def shared(run: ScriptedRun, trainer: Actor) -> None:
    """From QUIET_S on, another process works on the GPU, and the same steps take it twice as long."""
    on_gpus(run, trainer, "GPU-0", "GPU-0")


def on_gpus(run: ScriptedRun, trainer: Actor, mine: str, theirs: str) -> None:
    """The same, with what the driver has seen each of them on; "" where it has not said."""
    thief = run.process(200, "thief")
    for actor, uuid in ((trainer, mine), (thief, theirs)):
        if uuid:
            run.uses_gpu(actor, uuid)
    run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
    run.train(thief, QUIET_S, LENGTH_S, OTHERS)


@pytest.mark.parametrize(("mine", "theirs"), [("GPU-0", "GPU-1"), ("GPU-0", ""), ("", "GPU-0"), ("", "")])
def test_equal_ordinals_are_no_equal_gpus(tmp_path: Path, mine: str, theirs: str) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: on_gpus(run, trainer, mine, theirs))
    assert causes(diagnosis) == ["gpu-slower"]
    said = [one.reason for one in diagnosis.not_evaluated if one.cause == "gpu-contention"]
    assert any("is unknown" in one for one in said) is (not (mine and theirs))


def listed(run: ScriptedRun, trainer: Actor, *gpus: tuple[tuple[int, int], ...]) -> None:
    """The same work, with what the driver lists on each GPU, and an environment that says ordinal 0 is GPU 0."""
    thief = run.process(200, "thief")
    for actor in (trainer, thief):
        for ordinal in range(2):
            run.append(tables.PROCESS_GPUS, process=actor.number, ordinal=ordinal, uuid=f"GPU-{ordinal}")
    for second in range(int(LENGTH_S)):
        for index, processes in enumerate(gpus):
            run.gpu(second + 1, uuid=f"GPU-{index}", index=index, processes=processes)
    run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
    run.train(thief, QUIET_S, LENGTH_S, OTHERS)


def test_the_drivers_list_counts_before_the_environment(tmp_path: Path) -> None:
    apart = diagnosed(tmp_path, lambda *one: listed(*one, ((100, 1),), ((200, 1),)))
    assert causes(apart) == ["gpu-slower"]
    (tmp_path / "together").mkdir()
    together = diagnosed(tmp_path / "together", lambda *one: listed(*one, (), ((100, 1), (200, 1))))
    assert causes(together) == ["gpu-contention"]
    assert together.incidents[0].root == "GPU-1"


def in_slices(run: ScriptedRun, trainer: Actor, mine: str, theirs: str) -> None:
    thief = run.process(200, "thief")
    run.append(tables.GPUS, uuid="GPU-0", gpu_index=0, slices=2)
    for actor, name in ((trainer, mine), (thief, theirs)):
        run.append(tables.PROCESS_GPUS, process=actor.number, ordinal=-1, uuid="GPU-0", slice=name)
    run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
    run.train(thief, QUIET_S, LENGTH_S, OTHERS)


@pytest.mark.parametrize(
    ("mine", "theirs", "cause"),
    [("1/0", "1/0", "gpu-contention"), ("1/0", "2/0", "gpu-slower"), ("", "1/0", "gpu-slower")],
)
def test_two_slices_of_one_gpu_share_nothing(tmp_path: Path, mine: str, theirs: str, cause: str) -> None:
    assert causes(diagnosed(tmp_path, lambda *one: in_slices(*one, mine, theirs))) == [cause]


def test_the_other_process_is_named_with_the_share_that_is_left(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, shared)
    assert causes(diagnosis) == ["gpu-contention"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(200, "thief")]
    assert incident.lost_ratio == pytest.approx(6 / 12.55, rel=0.05)
    assert incident.evidence["share of the GPU (ratio)"] == pytest.approx(0.5, abs=0.03)


def test_a_device_that_was_as_slow_without_the_other_has_another_reason(tmp_path: Path) -> None:
    def slower_anyway(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        for begin in range(0, int(LENGTH_S), 2):
            run.train(run.process(200, "thief"), begin, begin + 1, OTHERS)

    assert causes(diagnosed(tmp_path, slower_anyway)) == ["gpu-slower"]


def test_a_neighbor_that_costs_nothing_is_silent(tmp_path: Path) -> None:
    def harmless(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        run.train(run.process(200, "thief"), QUIET_S, LENGTH_S, OTHERS)

    assert causes(diagnosed(tmp_path, harmless)) == []


def test_little_work_of_another_does_not_explain_a_large_loss(tmp_path: Path) -> None:
    def small(run: ScriptedRun, trainer: Actor) -> None:
        """The other has work for 1 ms in 20."""
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        run.train(run.process(200, "thief"), QUIET_S, LENGTH_S, Step(idle_ms=19, launch_ms=0.5, busy_ms=1))

    assert "gpu-contention" not in causes(diagnosed(tmp_path, small))


def on_gpu(run: ScriptedRun, came_s: float, left_s: float = LENGTH_S) -> None:
    """The driver's samples, with a process that is not traced from came_s to left_s."""
    for second in range(int(LENGTH_S)):
        is_there = second >= came_s and second + 1 <= left_s
        run.gpu(second + 1, processes=((100, 1 << 30), *(((300, 1 << 30),) if is_there else ())))


def test_a_process_that_is_not_traced_is_named_by_the_driver(tmp_path: Path) -> None:
    def stranger(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        on_gpu(run, QUIET_S)

    incident = diagnosed(tmp_path, stranger).incidents[0]
    assert (incident.cause, [one.pid for one in incident.culprits]) == ("gpu-contention", [300])
    assert "which is not traced" in incident.summary
    assert "--pid 100,300" in incident.fixes[0].command


def test_one_that_leaves_between_two_samples_owns_the_time_until_then(tmp_path: Path) -> None:
    def until_the_middle_of_a_second(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 3.5, Step(busy_ms=12))
        run.train(trainer, QUIET_S + 3.5, LENGTH_S, Step())
        on_gpu(run, QUIET_S, QUIET_S + 3.5)

    diagnosis = diagnosed(tmp_path, until_the_middle_of_a_second)
    assert {one.cause: one.lost_ns / 1e9 for one in diagnosis.incidents} == {
        "gpu-contention": pytest.approx(3.5 * 6 / 12.55, rel=0.05)
    }


def test_a_process_that_was_there_before_is_no_reason(tmp_path: Path) -> None:
    def neighbor(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        on_gpu(run, 0)

    assert causes(diagnosed(tmp_path, neighbor)) == ["gpu-slower"]


def test_a_process_that_came_later_is_no_reason(tmp_path: Path) -> None:
    def late(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        on_gpu(run, (QUIET_S + LENGTH_S) / 2)

    assert causes(diagnosed(tmp_path, late)) == ["gpu-slower"]


def at_work(run: ScriptedRun, percents: Callable[[int], int | None]) -> None:
    """The driver's samples, with what it saw run of a process that is on the GPU all the time."""
    for second in range(int(LENGTH_S)):
        run.gpu(second + 1, processes=((100, 1 << 30, 90, "python"), (300, 1 << 30, percents(second), "neighbor")))


def test_the_driver_tells_when_a_process_that_was_always_there_works(tmp_path: Path) -> None:
    def neighbor(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        at_work(run, lambda second: 50 if second >= QUIET_S else None)

    diagnosis = diagnosed(tmp_path, neighbor)
    assert causes(diagnosis) == ["gpu-contention"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(300, "neighbor")]
    assert "neighbor [300] ran there 50% of that time (baseline 0.0%)" in incident.summary
    assert incident.lost_ratio == pytest.approx(6 / 12.55, rel=0.05)


def test_a_process_that_has_ended_was_at_work_until_then(tmp_path: Path) -> None:
    """The driver no longer lists it at the end of its last second, and the GPU takes a little longer for a while."""

    def neighbor(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 3.8, Step(busy_ms=12))
        run.train(trainer, QUIET_S + 3.8, QUIET_S + 4.4, Step(busy_ms=8))
        run.train(trainer, QUIET_S + 4.4, LENGTH_S, Step())
        at_work(run, lambda second: 50 if QUIET_S <= second < QUIET_S + 3 else None)

    incident = diagnosed(tmp_path, neighbor).incidents[0]
    assert (incident.cause, [one.pid for one in incident.culprits]) == ("gpu-contention", [300])


@pytest.mark.parametrize("percents", [lambda _: 50, lambda _: None, lambda second: 5 if second >= QUIET_S else 0])
def test_a_process_that_works_as_ever_or_hardly_is_no_reason(
    tmp_path: Path, percents: Callable[[int], int | None]
) -> None:
    def neighbor(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        at_work(run, percents)

    assert causes(diagnosed(tmp_path, neighbor)) == ["gpu-slower"]


@pytest.mark.parametrize(("percent", "lost_ratio"), [(50, 6 / 12.55), (20, 0.2)])
def test_without_launches_others_answer_for_as_long_as_their_kernels_ran(
    tmp_path: Path, percent: int, lost_ratio: float
) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, QUIET_S, Step(is_untraced=True))
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12, is_untraced=True))
        at_work(run, lambda second: percent if second >= QUIET_S else 0)
    shared_gpu = next(one for one in diagnosed_file(tmp_path / "scene.db").incidents if one.cause == "gpu-contention")
    assert f"lost up to {shared_gpu.lost_ns / 1e9:.2f} s" in shared_gpu.summary
    assert shared_gpu.lost_ratio == pytest.approx(lost_ratio, rel=0.1)


def test_without_sync_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"sync_intervals": "no return probes"})
    assert "gpu-contention" in {one.cause for one in diagnosis.not_evaluated}
