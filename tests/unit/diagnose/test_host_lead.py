"""Who sets the pace where launches are not traced: by how far the host ran ahead of the GPU when a thread waited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingero import given_up
from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import Diagnosis, FindingKind
from ingero.diagnose.steps.host_lead import host_leads, most_awaited_intervals
from ingero.diagnose.steps.pacing import Lead, PacedBy
from ingero.events import SyncIntervalFlag
from ingero.store.arrays.arrays import GPU_STREAM_DTYPE
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed_file

MS_NS = 1_000_000
STEPS = 100  # of which the last waits
OWN_MS, AHEAD_MS = 5.0, 43.0  # of a wait: for the step's own work; for that of six more

AHEAD = RepeatedStep(
    host_ms=6.4, host={"sleep": 4.0}, flags=SyncIntervalFlag.UNTIMED
)  # asleep in launches on a full queue
STARVED = RepeatedStep(
    host_ms=8.4, host={"sleep": 6.0}, flags=SyncIntervalFlag.UNTIMED
)  # asleep until a batch is there


def intervals(*ends_and_waits_ms: tuple[float, float]) -> np.ndarray:
    waits = np.zeros(len(ends_and_waits_ms), GPU_STREAM_DTYPE)
    begin_ns = 0
    for wait, (end_ms, waited_ms) in zip(waits, ends_and_waits_ms, strict=True):
        wait["prev_sync_end_ns"], wait["gpu_done_ns"], wait["sync_end_ns"] = begin_ns, end_ms * MS_NS, end_ms * MS_NS
        wait["sync_start_ns"] = wait["gpu_done_ns"] - waited_ms * MS_NS
        wait["busy_ns"] = wait["gpu_done_ns"] - wait["prev_sync_end_ns"]  # since its first launch, which is seen here
        begin_ns = int(wait["sync_end_ns"])
    return waits


def steps_of(ms: float, count: int) -> np.ndarray:
    steps = np.zeros(count, GPU_STREAM_DTYPE)
    steps["sync_end_ns"] = (np.arange(count) + 1) * int(ms * MS_NS)
    steps["prev_sync_end_ns"] = steps["sync_end_ns"] - int(ms * MS_NS)
    steps["flags"] = int(SyncIntervalFlag.UNTIMED)
    return steps


@pytest.mark.parametrize(
    ("waited_ms", "lead"),
    [(0.0, Lead.HOST), (9.9, Lead.HOST), (15.0, Lead.NOT_KNOWN), (20.0, Lead.GPU), (60.0, Lead.GPU)],
)
def test_a_wait_longer_than_its_own_step_is_for_what_was_launched_ahead(waited_ms: float, lead: Lead) -> None:
    steps = steps_of(10, 100)
    found = host_leads(steps, intervals((1000, waited_ms)))
    assert set(found.of(steps)) == {lead}


def test_where_each_step_waits_the_share_of_time_tells() -> None:
    steps = steps_of(10, 3)
    found = host_leads(steps, intervals((10, 0.5), (20, 2.0), (30, 4.0)))
    assert found.of(steps).tolist() == [Lead.HOST, Lead.NOT_KNOWN, Lead.NOT_KNOWN]
    assert host_leads(steps, intervals((10, 4.0), (20, 4.0), (30, 4.0))).of(steps).tolist() == [Lead.GPU] * 3


def test_between_a_host_that_was_not_ahead_and_one_that_is_both_may_have_been() -> None:
    steps = steps_of(10, 60)
    found = host_leads(steps, intervals((100, 50), (200, 50), (300, 5), (400, 5), (500, 50))).of(steps)
    expected = [Lead.GPU] * 20 + [Lead.HOST] * 20 + [Lead.NOT_KNOWN] * 20  # of the last ten no wait tells
    assert found.tolist() == expected


def test_where_steps_wait_themselves_each_tells_of_itself() -> None:
    steps = steps_of(10, 30)
    steps["busy_ns"] = 6 * MS_NS  # in the copy of the batch
    steps["busy_ns"][10], steps["sync_end_ns"][10:] = 5 * MS_NS, steps["sync_end_ns"][10:] + 200 * MS_NS  # it came late
    steps["prev_sync_end_ns"][11:] += 200 * MS_NS
    rare = intervals((310, 60))
    assert host_leads(steps, rare).of(steps).tolist() == [Lead.GPU] * 10 + [Lead.HOST] + [Lead.GPU] * 19


def test_without_a_wait_nothing_is_known() -> None:
    steps = steps_of(10, 20)
    found = host_leads(steps, most_awaited_intervals([], 1))
    assert set(found.of(steps)) == {Lead.NOT_KNOWN}
    assert found.pace(steps) is PacedBy.UNKNOWN


def test_the_stream_that_is_waited_for_longest_counts() -> None:
    copies = GpuStream(
        process=1, pid=7, device=0, stream=5, sync_intervals=intervals(*((10.0 * at, 0.1) for at in range(1, 100)))
    )
    computes = GpuStream(process=1, pid=7, device=0, stream=0, sync_intervals=intervals((990.0, 60.0)))
    assert most_awaited_intervals([copies, computes], 1).tolist() == computes.sync_intervals.tolist()
    computes.sync_intervals["flags"] = int(SyncIntervalFlag.PARTIAL)
    assert not len(most_awaited_intervals([copies, computes], 1)), "others had work at its end"


def add_turn(
    run: ScriptedRun,
    trainer: Actor,
    at_s: float,
    step: RepeatedStep,
    waits_ms: float,
    stall: RepeatedStep | None = None,
) -> float:
    """STEPS steps, the last of which waits for its lost time, and that wait's interval; answers when it is over, s.

    stall: what one in the middle is instead.
    """
    looks = replace(step, blocked={"sync": waits_ms}, syncs=1)
    now_s = at_s
    for one, count in ((step, STEPS // 2), (stall or step, 1), (step, STEPS // 2 - 2), (looks, 1)):
        length_s = count * (one.host_ms + sum(one.blocked.values())) / 1e3
        add_steps(run, trainer, now_s, now_s + length_s, one)
        now_s += length_s
    host_ms = 1e3 * (now_s - at_s) - waits_ms
    turn = Step(is_untraced=True, idle_ms=host_ms, launch_ms=0, busy_ms=waits_ms, return_delay_ms=0, noise=0)
    run.train(trainer, at_s, at_s + host_ms / 1e3, turn)
    return now_s


@contextmanager
def without_launches(path: Path) -> Iterator[tuple[ScriptedRun, Actor]]:
    """A recording of a trainer whose launches are not traced."""
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        run.append(
            tables.OVERHEAD_LEVELS, time_ns=run.at(0), level=6, not_traced=given_up.LAUNCHES_OFF.code, reason="many"
        )
        yield run, run.process(100, "python")


def looking_loop(folder: Path, *parts: tuple[RepeatedStep, float], hog_ms: float = 0) -> Diagnosis:
    """A trainer that looks at its loss each STEPS steps.

    parts: equal time ranges of such steps, and what the wait for the lost time takes, ms. hog_ms: that a hog takes of a
    step.
    """
    path, at_s = folder / "scene.db", 0.0
    with without_launches(path) as (run, trainer):
        for number, (step, waits_ms) in enumerate(parts, 1):
            while at_s < LENGTH_S * number / len(parts) - 1:
                at_s = add_turn(run, trainer, at_s, step, waits_ms)
        for second in range(int(LENGTH_S) - 1):
            if hog_ms:
                run.culprit(trainer, 900, "hog", second, hog_ms * 1e3 / parts[0][0].host_ms)
    return diagnosed_file(path)


def test_a_host_that_is_ahead_is_no_bottleneck_whatever_keeps_it_waiting(tmp_path: Path) -> None:
    diagnosis = looking_loop(tmp_path, (replace(AHEAD, host={"runq": 2.0}), AHEAD_MS), hog_ms=2.0)
    assert causes(diagnosis) == []
    assert diagnosis.verdicts[0].text.startswith("GPU-bound, by how far the host ran ahead of the GPU")


def test_a_host_that_is_never_ahead_sets_the_pace(tmp_path: Path) -> None:
    diagnosis = looking_loop(tmp_path, (replace(STARVED, host={"runq": 2.0}), OWN_MS), hog_ms=2.0)
    (incident,) = diagnosis.incidents
    assert (incident.kind, incident.cause) == (FindingKind.BOTTLENECK, "cpu-contention")
    assert diagnosis.verdicts[0].text.startswith("host-bound, by how far the host ran ahead of the GPU")


def test_what_a_host_sleeps_that_is_not_ahead_any_more_is_its_own(tmp_path: Path) -> None:
    (incident,) = looking_loop(tmp_path, (AHEAD, AHEAD_MS), (STARVED, OWN_MS)).incidents
    assert incident.breakdown["host.sleep"] > 0.9 * incident.lost_ns


def test_a_longer_turn_of_a_host_that_is_ahead_is_not_the_hosts(tmp_path: Path) -> None:
    slow = replace(AHEAD, host_ms=8.4, host={"sleep": 6.0})
    diagnosis = looking_loop(tmp_path, (AHEAD, AHEAD_MS), (slow, 60.0))
    assert causes(diagnosis) == ["unexplained"]
    assert diagnosis.incidents[0].breakdown["blocked.gpu_execution"] > 0.99 * diagnosis.incidents[0].lost_ns


def test_a_stop_longer_than_the_host_can_have_been_ahead_is_the_hosts(tmp_path: Path) -> None:
    stall, at_s, stalls = replace(AHEAD, host_ms=206.4, host={"sleep": 4.0, "stopped": 200.0}), 0.0, 0
    with without_launches(tmp_path / "scene.db") as (run, trainer):
        while at_s < LENGTH_S - 1:
            stalls += at_s > LENGTH_S / 2
            at_s = add_turn(run, trainer, at_s, AHEAD, AHEAD_MS, stall if at_s > LENGTH_S / 2 else None)
    (incident,) = diagnosed_file(tmp_path / "scene.db").incidents
    assert incident.cause == "stopped"
    assert incident.breakdown["host.stopped"] == pytest.approx(stalls * (200 - AHEAD_MS) * MS_NS, rel=0.02)
