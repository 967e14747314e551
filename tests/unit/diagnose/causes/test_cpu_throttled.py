"""cpu-throttled: fires by the kernel's own clock, is silent where the throttled time costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_the_throttled_clock_of_the_path_is_charged_to_the_quota(tmp_path: Path) -> None:
    def throttled(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"throttled": 2.95}))

    diagnosis = diagnosed(tmp_path, throttled)
    assert causes(diagnosis) == ["cpu-throttled"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(2.95 / 9.5, rel=0.03)


def test_throttling_inside_the_wait_for_the_device_costs_nothing(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(sync={"throttled": 2.95}))

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_without_sync_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"sync_intervals": "no return probes"})
    assert "cpu-throttled" in {one.cause for one in diagnosis.not_evaluated}


def test_the_quota_is_told_with_what_would_have_been_enough(tmp_path: Path) -> None:
    def throttled(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"throttled": 2.95}))
        run.scheduling(trainer.pid, QUIET_S, process=trainer.number, quota_us=50_000, period_us=100_000)
        run.append(tables.CGROUP_THROTTLING, start_ns=run.at(7), cgroup_id=5, nr_throttled=60, throttled_ns=1)
        run.append(tables.CGROUP_THROTTLING, start_ns=run.at(7), cgroup_id=6, nr_throttled=900, throttled_ns=1)

    incident = diagnosed(tmp_path, throttled, cgroup_id=5).incidents[0]
    assert "quota of 0.5 CPUs (50.0 ms in each 100 ms) was used up, in 60 periods" in incident.summary
    assert "at least 0.72 CPUs" in incident.fixes[0].text


@pytest.mark.parametrize(("own_ms", "other_ms", "share"), [(150, 0, "70%"), (450, 0, ""), (150, 300, "")])
def test_who_else_uses_the_quota_is_told_by_what_was_not_traced(
    tmp_path: Path, own_ms: int, other_ms: int, share: str
) -> None:
    """Ten periods a second used up 50 ms each, of which it and another rank had no more than all of their time."""

    def throttled(run: ScriptedRun, trainer: Actor) -> None:
        rank = run.process(200, "python", cgroup_id=5)
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"throttled": 2.95}))
        run.scheduling(trainer.pid, QUIET_S, process=trainer.number, quota_us=50_000, period_us=100_000)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.second(trainer, second, run=own_ms, throttled=300)
            run.second(rank, second, run=other_ms)
            run.append(tables.CGROUP_THROTTLING, start_ns=run.at(second), cgroup_id=5, nr_throttled=10, throttled_ns=1)

    incident = diagnosed(tmp_path, throttled, cgroup_id=5).incidents[0]
    assert (
        f"was used up, at least {share} of it by processes of its cgroup that are not traced" in incident.summary
    ) is bool(share)
    assert any("OMP_NUM_THREADS" in fix.command for fix in incident.fixes) is not bool(share)
    assert ("see who else uses its quota" in incident.fixes[0].text) is bool(share)


def test_the_own_threads_are_those_of_the_worst_ten_seconds_not_of_the_first(tmp_path: Path) -> None:
    """Something slight may begin an incident long before the threads that use up the quota."""

    def throttled(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, 26, Step(return_delay_ms=2, sync={"throttled": 1.95}))
        run.train(trainer, 26, 40, Step(return_delay_ms=8, sync={"throttled": 7.95}))
        run.scheduling(trainer.pid, QUIET_S, process=trainer.number, quota_us=50_000, period_us=100_000)
        for second in range(26, 40):
            for thread in range(16):
                run.off_cpu(trainer, second + thread / 100, second + 0.2, "throttled", tid=trainer.pid + thread)

    (incident,) = diagnosed(tmp_path, throttled, length_s=40).incidents
    assert "was used up by 16 threads of its own" in incident.summary


def test_the_own_threads_that_share_the_quota_are_told_with_the_setting_of_the_framework(tmp_path: Path) -> None:
    """16 of them would use up 15 CPUs, where the machine has 4: 0.72 instead of 0.5 would change little."""

    def throttled(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"throttled": 2.95}))
        run.scheduling(trainer.pid, QUIET_S, process=trainer.number, quota_us=50_000, period_us=100_000)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.second(trainer, second, run=500, throttled=14_500)
            for thread in range(16):
                begin = second + thread / 100
                run.off_cpu(trainer, begin, begin + 0.05, "throttled", tid=trainer.pid + thread)

    incident = diagnosed(tmp_path, throttled).incidents[0]
    assert "was used up by 16 threads of its own" in incident.summary
    first, second = incident.fixes
    assert "16 threads share 0.5, and would use up 15 as well" in first.text
    assert "OMP_NUM_THREADS=1" in first.command
    assert "torch.set_num_threads(1)" in first.command
    assert "or raise the quota of its cgroup to at least 4 CPUs" in second.text
