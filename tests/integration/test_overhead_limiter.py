"""Levels change under full load without losing or doubling a call, and what they leave out is marked and reported."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from bench.timers import watched_timers
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.probes import ProbeMode
from ingero.capture.budget.levels import Level, Levels
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.loop.session import session_facts
from ingero.demo.gpusim.build import build, environment
from ingero.demo.gpusim.truth import read_all
from ingero.demo.workloads import steps
from ingero.demo.workloads.program import Program
from ingero.events import SyncIntervalFlag
from ingero.ops import BY_NAME, Kind, Source
from ingero.store.writing.writer import Writer
from tests.integration.sync_interval_cases import Recording, Run, flagged, load, matched, recorded_parts, true_parts
from tests.integration.targets import rows
from tests.integration.test_counts import recorded_counts, true_counts
from tests.integration.test_sync_intervals import unseen_ns, without_late_timers

pytestmark = pytest.mark.integration

CHANGES_A_SECOND = 5
SECONDS, CALLS_PER_SECOND = 4, 60_000
COUNTED = frozenset({Level.LAUNCHES_AT_DRIVER, Level.LAUNCHES_COUNTED})
OFF = frozenset({Level.LAUNCHES_OFF})
# Each keeps every launch countable.
COUNTING: Sequence[Levels] = (
    frozenset({Level.LAUNCHES_AT_DRIVER}),
    COUNTED,
    frozenset(),
    frozenset({Level.LAUNCHES_COUNTED}),
    frozenset({Level.LAUNCHES_AT_DRIVER}),
    frozenset(),
    COUNTED,
)


@dataclass
class LimitedRecording:
    """A recording in this process, whose levels the test changes."""

    recorder: Recorder
    database: Path
    seconds: list[SecondOfCounts] = field(default_factory=list)

    def record(self, *, until: Callable[[], bool], each_second: Callable[[], None] = lambda: None) -> None:
        def on_second(second: SecondOfCounts) -> None:
            self.seconds.append(second)
            each_second()

        self.recorder.run(should_stop=until, on_second=on_second)


@contextmanager
def governed(
    folder: Path, pid: int, mode: ProbeMode | None = None, *, with_stacks: bool = False
) -> Iterator[LimitedRecording]:
    database = folder / "recording.db"
    with (
        KernelSide(KernelSizes(), mode=mode, record_all=with_stacks, with_stacks=with_stacks) as kernel,
        Writer(database, session=session_facts([pid]), node="node") as sink,
        Recorder(kernel, sink, RecorderOptions(pids=[pid], with_stacks=with_stacks)) as recorder,
    ):
        recorder.start()
        yield LimitedRecording(recorder, database)


def run_script(recording: LimitedRecording, script: Iterator[None]) -> None:
    recording.record(until=lambda: not len(recording.recorder.traced_processes), each_second=lambda: next(script, None))


def torture(folder: Path, modes: Sequence[Levels], kind: ProbeMode | None = None) -> tuple[Path, Counter[str]]:
    """Two processes of four threads that call everything; several changes a second. The database and the losses."""
    truth, gate = folder / "truth.%p", folder / "go"
    variables = environment(build(), ctl=folder / "knobs", trace=truth, sched="block")
    arguments = ["--threads", 4, "--processes", 2, "--seconds", SECONDS, "--rate", CALLS_PER_SECOND, "--gate", gate]
    wanted = cycle(modes)
    with Program.module("calls", *arguments, environment={**os.environ, **variables}) as program:
        pid = int(program.wait_for("loaded")[0])
        with governed(folder, pid, kind) as recording:
            overhead_limiter = recording.recorder.overhead_limiter

            def change() -> None:
                for _ in range(CHANGES_A_SECOND):
                    overhead_limiter.apply(next(wanted), "the test")
                    time.sleep(0.02)

            gate.touch()
            recording.record(until=lambda: not len(recording.recorder.traced_processes), each_second=change)
            return recording.database, Counter(recording.recorder.seconds.drops_total)


def launches(counts: Counter[str]) -> Counter[Source]:
    """Of kernels, by layer."""
    found: Counter[Source] = Counter()
    for name, count in counts.items():
        op = BY_NAME[name]
        if op.kind & Kind.LAUNCH and not op.kind & Kind.GRAPH:
            found[op.source] += count
    return found


@pytest.mark.parametrize("kind", [ProbeMode.SESSION, ProbeMode.MULTI])
def test_no_launch_is_lost_or_counted_twice_while_levels_change(tmp_path: Path, kind: ProbeMode) -> None:
    database, _ = torture(tmp_path, COUNTING, kind)
    outer, nested, _ = recorded_counts(database)
    true_outer, true_nested, _ = true_counts(read_all(tmp_path / "truth.%p"))
    steps = rows(database, "SELECT count(*) FROM raw_overhead_levels")[0][0]
    print(f"\n{steps} steps; {launches(outer)} of {launches(true_outer)}, in another call {launches(nested)}")
    assert steps > SECONDS, "a change a second"
    assert launches(outer).total() == launches(true_outer).total()
    at_driver = launches(outer)[Source.DRIVER] + launches(nested)[Source.DRIVER]
    assert at_driver == launches(true_outer)[Source.DRIVER] + launches(true_nested)[Source.DRIVER]
    assert launches(outer)[Source.CUDA] < launches(true_outer)[Source.CUDA], "some were not traced at the runtime"


def others(counts: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in counts.items() if not BY_NAME[name].kind & Kind.LAUNCH})


def test_what_is_still_traced_stays_exact_while_launches_come_and_go(tmp_path: Path) -> None:
    database, drops = torture(tmp_path, (OFF, frozenset(), OFF, COUNTED))
    outer, nested, _ = recorded_counts(database)
    true_outer, true_nested, _ = true_counts(read_all(tmp_path / "truth.%p"))
    print(f"\n{launches(outer).total()} of {launches(true_outer).total()} launches")
    assert others(+outer) == others(+true_outer)
    assert others(+nested) == others(+true_nested)
    assert 0 < launches(outer).total() < launches(true_outer).total()
    assert not drops["return_unmatched"]


# What a change does to sync intervals

PHASES: dict[str, Levels] = {
    "all": frozenset(),
    "counted": COUNTED,
    "events at the driver": COUNTED | {Level.EVENTS_AT_DRIVER},
    "off": OFF,
    "events off, too": OFF | {Level.EVENTS_OFF},
    "all again": frozenset(),
}
UNSEEN = ("off", "events off, too")
COMPLETE = ("all", "counted", "events at the driver", "all again")
PROBED_SECONDS = 2  # the driver's calls are probed when its library has been seen
MIN_SYNC_INTERVALS, PHASE_STEPS = 20, 100
LOOPS: dict[str, Sequence[str]] = {
    "waits for its stream": (),
    "waits for events of two streams": ("--sync", "event", "--streams", "ordered"),
}
CHANGE_NS = 300_000_000  # some sync intervals end before and after a change, even on a busy machine
CLOCK_STEP_NS = 1000  # an account is whole but for what its own reading takes
BUSY_RATIO = 0.03  # launches that are only counted cost less, and the simulator's clock sees what they cost


IN_CI = "waits for events of two streams"  # which end the same sync intervals, of a stream and of another's events


@pytest.fixture(
    scope="module", params=[IN_CI, *(pytest.param(n, marks=pytest.mark.further) for n in LOOPS if n != IN_CI)]
)
def phased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A training loop that is traced in several ways, one after the other."""
    folder = tmp_path_factory.mktemp("phased")
    gate, truth, log = folder / "go", folder / "truth.%p", folder / "steps.jsonl"
    knobs, host_knobs = folder / "knobs", folder / "host_knobs"
    variables = environment(build(), ctl=knobs, trace=truth, sched="block")
    options = ["--gate", gate, "--seconds", 120, "--out", log, "--knob", host_knobs, *LOOPS[request.param]]
    timers = folder / "timers"
    with (
        watched_timers(timers),
        Program.module("train", *options, environment={**os.environ, **variables}) as program,
    ):
        with governed(folder, int(program.wait_for("loaded")[0])) as recording:
            run = Run(program, knobs=knobs, host_knobs=host_knobs, log=log, timers=timers)

            def phase() -> Iterator[None]:
                """So many steps, and long enough that the surroundings of two changes have nothing in common."""
                count, until_ns = len(steps.read(log)) + PHASE_STEPS, time.monotonic_ns() + 2 * CHANGE_NS
                while len(steps.read(log)) < count or time.monotonic_ns() < until_ns:
                    yield

            def script() -> Iterator[None]:
                yield from [None] * PROBED_SECONDS
                for name, wanted in PHASES.items():
                    begin_ns = time.monotonic_ns()
                    recording.recorder.overhead_limiter.apply(wanted, name)
                    run.bounds[f"to {name}"] = begin_ns - CHANGE_NS, time.monotonic_ns() + CHANGE_NS
                    begin_ns = time.monotonic_ns()
                    yield from phase()
                    run.bounds[name] = begin_ns, time.monotonic_ns()
                program.stop()

            gate.touch()
            run_script(recording, script())
        return load(recording.database, read_all(truth), run)


@pytest.mark.parametrize("phase", COMPLETE)
def test_every_sync_ends_an_sync_interval_while_launches_are_timed_or_counted(phased: Recording, phase: str) -> None:
    syncs = phased.syncs(1)
    sync_intervals = phased.main_stream(phase)
    assert len(sync_intervals) == int(phased.phases[phase].holds(syncs["return_ns"]).sum()) > MIN_SYNC_INTERVALS


@pytest.mark.parametrize("phase", COMPLETE)
def test_parts_of_sync_intervals_are_the_simulators_while_launches_are_timed_or_counted(
    phased: Recording, phase: str
) -> None:
    sync_intervals = phased.main_stream(phase)
    sync_intervals, syncs = without_late_timers(sync_intervals, matched(sync_intervals, phased.syncs(1)))
    found, true = recorded_parts(sync_intervals), true_parts(sync_intervals, syncs)
    unseen = unseen_ns(phased, phase, sync_intervals)
    print(
        f"\n{phase}: {len(sync_intervals)} sync intervals; empty {found.idle_ns}/{true.idle_ns}, "
        f"busy {found.busy_ns}/{true.busy_ns}, late timers {unseen}"
    )
    assert abs(found.idle_ns - true.idle_ns) <= BUSY_RATIO * true.wall_ns
    assert abs(found.busy_ns - true.busy_ns) <= BUSY_RATIO * true.wall_ns + unseen


def test_sync_intervals_have_as_many_launches_timed_as_counted(phased: Recording) -> None:
    baseline = {phase: np.median(phased.main_stream(phase)["launches"]) for phase in COMPLETE}
    assert len(set(baseline.values())) == 1


@pytest.mark.parametrize("phase", UNSEEN)
def test_every_sync_ends_an_interval_while_launches_are_not_traced(phased: Recording, phase: str) -> None:
    syncs = phased.syncs(1)
    intervals = phased.main_stream(phase)
    assert len(intervals) == int(phased.phases[phase].holds(syncs["return_ns"]).sum()) > MIN_SYNC_INTERVALS / 2


@pytest.mark.parametrize("phase", UNSEEN)
def test_the_hosts_part_and_the_wait_are_exact_while_launches_are_not_traced(phased: Recording, phase: str) -> None:
    intervals = phased.main_stream(phase)[2:-2]  # of these none spans a change
    clocks = intervals["idle_state_ns"].sum(axis=1)
    assert (intervals["first_launch_ns"] == intervals["sync_start_ns"]).all()
    assert np.abs(intervals["prev_sync_end_ns"][1:] - intervals["sync_end_ns"][:-1]).max() <= CLOCK_STEP_NS
    assert np.abs(clocks - intervals["idle_ns"]).max() <= CLOCK_STEP_NS
    intervals, syncs = without_late_timers(intervals, matched(intervals, phased.syncs(1)))
    wait_ns, true_ns = (
        np.maximum(ready - intervals["sync_start_ns"], 0)
        for ready in (intervals["gpu_done_ns"], syncs["device_end_ns"])
    )
    unseen = unseen_ns(phased, phase, intervals)
    print(f"\n{phase}: {len(intervals)} intervals; waited {wait_ns.sum()}/{true_ns.sum()}, late timers {unseen}")
    assert (
        abs(int(wait_ns.sum()) - int(true_ns.sum()))
        <= BUSY_RATIO * int(syncs["return_ns"].sum() - syncs["begin_ns"].sum()) + unseen
    )


def test_intervals_without_launches_are_of_a_type_of_their_own(phased: Recording) -> None:
    types = {phase: set(phased.main_stream(phase)[2:-2]["step_type"].tolist()) for phase in PHASES}
    assert all(not types[phase] & types[other] for phase in UNSEEN for other in COMPLETE)
    assert all(len(types[phase]) == 1 for phase in UNSEEN)


def test_only_intervals_that_span_a_change_are_flagged_as_changed(phased: Recording) -> None:
    # the first and the last of a phase may span one
    changed = {phase: flagged(phased.main_stream(phase), SyncIntervalFlag.COVERAGE_CHANGED) for phase in PHASES}
    assert max(changed.values()) <= 2
    unseen = {phase: flagged(phased.main_stream(phase)[2:-2], SyncIntervalFlag.ENQUEUES_UNSEEN) for phase in PHASES}
    assert unseen == {phase: len(phased.main_stream(phase)[2:-2]) * (phase in UNSEEN) for phase in PHASES}


def test_sync_intervals_that_span_a_change_are_flagged(phased: Recording) -> None:
    for phase in ("counted", "events at the driver", "all again"):
        assert flagged(phased.main_stream(f"to {phase}"), SyncIntervalFlag.COVERAGE_CHANGED) > 0
