"""Every sync ends a sync interval, and what the agent makes of it agrees with the simulated GPU and the step times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ingero.diagnose.lost_time.end_to_end import LostTime, lost_time, references
from ingero.events import STATES
from tests.integration.sync_interval_cases import (
    Array,
    Mode,
    Parts,
    Recording,
    Run,
    matched,
    recorded,
    recorded_parts,
    true_parts,
)

pytestmark = pytest.mark.integration

MODES: tuple[Mode, ...] = ("block", "spin", "yield")
BASELINE_S = 2.0
FAULT_S = 2.0
COPY_BYTES = 16 << 20

SMALL_RATIO = 0.005  # where little is returned late, the agent's own errors weigh more
PICKUP_RATIO = 0.03
RUNNABLE_RATIO = 0.10
QUIET_RATIO = 0.03
DROP_RATIO = 0.02
NOTHING_RATIO = 0.01


def ms(ns: float) -> str:
    return f"{ns / 1e6:.1f}"


def is_close(found_ns: float, true_ns: float, wall_ns: float, slack_ns: float = 0) -> bool:
    return abs(found_ns - true_ns) <= max(PICKUP_RATIO * abs(true_ns), SMALL_RATIO * wall_ns) + slack_ns


def both_sides(recording: Recording, stream: int, phase: str | None = None) -> tuple[Array, Array]:
    """The sync intervals of a stream and the simulator's syncs that they ended in."""
    sync_intervals = recording.gpu_stream(stream)
    if phase is not None:
        sync_intervals = sync_intervals[recording.phases[phase].holds(sync_intervals["sync_end_ns"])]
    return sync_intervals, matched(sync_intervals, recording.syncs(stream))


def without_late_timers(sync_intervals: Array, syncs: Array) -> tuple[Array, Array]:
    """All but the worst in a hundred: a virtual machine's timer, the simulated device's interrupt, is at times late by
    milliseconds. The thread sleeps on meanwhile, and nothing inside the machine can know that the GPU was ready.
    """
    errors = np.abs(sync_intervals["gpu_done_ns"] - np.maximum(syncs["device_end_ns"], sync_intervals["sync_start_ns"]))
    kept = np.sort(np.argsort(errors)[: len(errors) - len(errors) // 100])
    return sync_intervals[kept], syncs[kept]


def unseen_ns(recording: Recording, phase: str, sync_intervals: Array, mode: str = "block") -> int:
    """What late timers, as long as those of this machine were meanwhile, hid: a sleeper's device is busy until then."""
    return len(sync_intervals) * recording.phases[phase].late_timer_ns if mode == "block" else 0


def print_parts(case: str, sync_intervals: Array, found: Parts, true: Parts) -> None:
    late_low, late_high = (
        int((sync_intervals["sync_end_ns"] - sync_intervals[name]).sum())
        for name in ("gpu_done_high_ns", "gpu_done_low_ns")
    )
    print(
        f"\n{case}: {len(sync_intervals)} sync intervals, {ms(found.wall_ns)} ms; ms against the truth: "
        f"empty {ms(found.idle_ns)}/{ms(true.idle_ns)}, busy {ms(found.busy_ns)}/{ms(true.busy_ns)}, "
        f"late {ms(found.return_delay_ns)}/{ms(true.return_delay_ns)} in [{ms(late_low)}, {ms(late_high)}]",
        end="",
    )


def drop_in(recording: Recording, phase: str) -> LostTime:
    return lost_time(recording.main_stream(phase), references(recording.main_stream("baseline")))


def print_loss(case: str, found: LostTime, step_lost_ns: float) -> None:
    print(
        f"\n{case}: {found.sync_intervals} sync intervals, loss {ms(found.lost_ns)} = empty {ms(found.idle_ns)} "
        f"+ busy {ms(found.busy_ns)} (host {ms(found.host_low_ns)} to {ms(found.host_high_ns)}) "
        f"+ late {ms(found.return_delay_ns)} ms of {ms(found.wall_ns)}; the step times say {ms(step_lost_ns)}; "
        f"noise {ms(found.noise_ns)}, {found.unjudged} sync intervals without a reference",
        end="",
    )


# How the syncs wait, with and without others on the CPUs


@pytest.fixture(scope="module", params=MODES)
def waiting(
    request: pytest.FixtureRequest, fault_run: Callable[[str], Recording], tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    """One way to wait, undisturbed and beside four hogs; the run of the usual loop is one that blocks."""
    if request.param == "block":
        return fault_run("usual loop")
    with recorded(tmp_path_factory.mktemp(request.param), request.param) as (run, recordings):
        run.phase("baseline", BASELINE_S)
        run.phase("hogs", FAULT_S, run.hogs())
    return recordings[0]


def mode_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["waiting"])


def test_parts_of_every_sync_interval_add_up_to_its_length(waiting: Recording) -> None:
    sync_intervals = waiting.sync_intervals
    assert len(sync_intervals) > 100
    assert (
        sync_intervals["idle_ns"] + sync_intervals["busy_ns"] + sync_intervals["return_delay_ns"]
        == sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    ).all()
    assert all((sync_intervals[name] >= 0).all() for name in ("idle_ns", "busy_ns", "return_delay_ns"))


def test_every_sync_but_the_first_ends_an_sync_interval(waiting: Recording) -> None:
    assert len(waiting.main_stream()) == len(waiting.syncs(1))


@pytest.mark.parametrize("phase", ["baseline", "hogs"])
def test_late_pickup_is_the_simulators(waiting: Recording, phase: str, request: pytest.FixtureRequest) -> None:
    sync_intervals, syncs = both_sides(waiting, 1, phase)
    if phase == "baseline":
        sync_intervals, syncs = without_late_timers(sync_intervals, syncs)
    found, true = recorded_parts(sync_intervals), true_parts(sync_intervals, syncs)
    print_parts(f"{mode_of(request)}, {phase}", sync_intervals, found, true)
    slack_ns = unseen_ns(waiting, phase, sync_intervals, mode_of(request))
    print(f", late timers {ms(slack_ns)}", end="")
    assert is_close(found.return_delay_ns, true.return_delay_ns, found.wall_ns, slack_ns)
    assert is_close(found.idle_ns, true.idle_ns, found.wall_ns)
    assert is_close(found.busy_ns, true.busy_ns, found.wall_ns, slack_ns)


def test_drop_to_hogs_is_what_the_steps_lost(waiting: Recording, request: pytest.FixtureRequest) -> None:
    found, expected_ns = drop_in(waiting, "hogs"), waiting.step_lost_ns("hogs", "baseline")
    print_loss(f"{mode_of(request)}, hogs", found, expected_ns)
    assert found.lost_ns == pytest.approx(expected_ns, rel=DROP_RATIO)


def runnable_and_late_ns(recording: Recording, phase: str) -> tuple[int, int, int]:
    """Time runnable inside the syncs, the simulator's late pickup, and what of it timers may have been late."""
    sync_intervals, syncs = both_sides(recording, 1, phase)
    runnable_ns = int(sync_intervals["sync_state_ns"][:, STATES.index("runq")].sum())
    return_delay_ns = true_parts(sync_intervals, syncs).return_delay_ns
    print(
        f"\nblock, {phase}: runnable in synchronizing calls {ms(runnable_ns)} ms, "
        f"returned late {ms(return_delay_ns)} ms, of {ms(recording.phases[phase].wall_ns)} ms",
        end="",
    )
    return runnable_ns, return_delay_ns, unseen_ns(recording, phase, sync_intervals)


@pytest.mark.parametrize("waiting", ["block"], indirect=True)
def test_beside_hogs_runnable_time_in_blocking_syncs_is_the_late_pickup(waiting: Recording) -> None:
    runnable_ns, return_delay_ns, unseen = runnable_and_late_ns(waiting, "hogs")
    assert abs(runnable_ns - return_delay_ns) <= RUNNABLE_RATIO * return_delay_ns + unseen


@pytest.mark.parametrize("waiting", ["block"], indirect=True)
def test_undisturbed_there_is_hardly_any_runnable_time_in_blocking_syncs(waiting: Recording) -> None:
    runnable_ns, return_delay_ns, unseen = runnable_and_late_ns(waiting, "baseline")
    allowed_ns = QUIET_RATIO * waiting.phases["baseline"].wall_ns
    assert abs(runnable_ns - return_delay_ns) <= allowed_ns + unseen
    if return_delay_ns > allowed_ns:
        pytest.skip(f"other load on this machine: the simulator itself returned late for {ms(return_delay_ns)} ms")
    assert runnable_ns <= allowed_ns


@pytest.mark.parametrize("waiting", ["block"], indirect=True)
def test_clocks_of_the_syncs_are_those_of_the_synchronizing_calls(waiting: Recording) -> None:
    in_syncs_ns = int(waiting.main_stream()["sync_state_ns"][:, STATES.index("runq")].sum())
    assert waiting.runnable_in_syncs_ns == pytest.approx(in_syncs_ns, rel=0.01)


# What the phases of faulty runs lost


@dataclass(frozen=True, kw_only=True)
class FaultRun:
    """A run with a baseline and then some faults, by name."""

    arguments: tuple[object, ...] = ()
    sync_every: int = 1
    baseline_s: float = BASELINE_S
    faults: dict[str, Callable[[Run], AbstractContextManager[object] | None]]


FAULT_RUNS = {
    "usual loop": FaultRun(
        faults={
            "nothing": lambda _: None,
            "slow worker": lambda run: run.host(worker_sleep_ms=20),
            "slower device": lambda run: run.device(kernel_scale=1.8),
            "slow launches": lambda run: run.device(launch_us=60),
            "hogs": Run.hogs,
        }
    ),
    "large batches and churn": FaultRun(
        arguments=("--nbytes", COPY_BYTES, "--churn"),
        faults={
            "slow copies": lambda run: run.device(pcie_gbps=1),
            "slow malloc": lambda run: run.device(malloc_us=2000),
        },
    ),
    "run-ahead": FaultRun(
        # batches that cost nothing, so that the launches can run ahead of the GPU at all beside other load
        arguments=("--cpu-ms", 0.2),
        sync_every=20,
        baseline_s=3.0,
        faults={"hidden stalls": lambda run: run.host(stall_ms=20, stall_every=20)},
    ),
}


@pytest.fixture(scope="module")
def fault_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """Each run once, when a test first asks for it."""

    @cache
    def run_once(name: str) -> Recording:
        plan = FAULT_RUNS[name]
        folder: Path = tmp_path_factory.mktemp("faults")
        with recorded(folder, "block", *plan.arguments, sync_every=plan.sync_every) as (run, recordings):
            run.phase("baseline", plan.baseline_s)
            for fault, apply in plan.faults.items():
                run.phase(fault, FAULT_S, apply(run))
        return recordings[0]

    return run_once


@pytest.mark.parametrize(
    ("name", "fault"),
    [(n, f) for n, plan in FAULT_RUNS.items() for f in plan.faults if f not in ("nothing", "hidden stalls", "hogs")],
)
def test_drop_to_a_fault_is_what_the_steps_lost(fault_run: Callable[[str], Recording], name: str, fault: str) -> None:
    recording = fault_run(name)
    found, expected_ns = drop_in(recording, fault), recording.step_lost_ns(fault, "baseline")
    print_loss(fault, found, expected_ns)
    assert found.lost_ns == pytest.approx(expected_ns, rel=DROP_RATIO)


@pytest.mark.parametrize(("name", "fault"), [("usual loop", "nothing"), ("run-ahead", "hidden stalls")])
def test_what_costs_nothing_is_no_drop(fault_run: Callable[[str], Recording], name: str, fault: str) -> None:
    recording = fault_run(name)
    found, expected_ns = drop_in(recording, fault), recording.step_lost_ns(fault, "baseline")
    allowed_ns = NOTHING_RATIO * recording.phases[fault].wall_ns
    print_loss(fault, found, expected_ns)
    assert found.lost_ns == pytest.approx(expected_ns, abs=allowed_ns)
    if abs(expected_ns) > allowed_ns:
        pytest.skip(f"other load on this machine slowed the steps themselves down, by {ms(expected_ns)} ms")
    assert abs(found.lost_ns) <= allowed_ns
