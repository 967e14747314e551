"""A recorded training loop in phases, and what the simulated GPU knows of each: both sides of every interval figure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.timers import mean_lateness_ns, watched_timers
from ingero.demo.faults import Fault
from ingero.demo.faults.model import Workload
from ingero.demo.faults.processes import threads
from ingero.demo.gpusim.build import build, environment
from ingero.demo.gpusim.knobs import Knobs
from ingero.demo.gpusim.truth import Truth, read_all
from ingero.demo.workloads import steps
from ingero.demo.workloads.host_knobs import HostKnobs
from ingero.demo.workloads.program import Program
from ingero.demo.workloads.steps import Step
from ingero.events import SyncIntervalFlag
from ingero.store.reader import open_reader
from tests.integration.tracing import tracing

Array = np.ndarray[Any, np.dtype[Any]]
Mode = Literal["block", "spin", "yield"]

LONGEST_RUN_S = 120  # ends the trainer if the test is killed
WARM_UP_SECONDS = 2  # the driver's calls are probed when the agent has seen its library, within a second
MATCH_NS = 20_000  # the agent's clock pairs are less exact than its clock
LEGACY_STREAM = 1 << 55 | 1  # bpf/streams.h, gpu_stream_key()

SYNCHRONIZING = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"}
TIMES = (
    "prev_sync_end_ns",
    "first_launch_ns",
    "sync_start_ns",
    "gpu_done_ns",
    "gpu_done_low_ns",
    "gpu_done_high_ns",
    "sync_end_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time range of the run between the ends of two steps, CLOCK_MONOTONIC.

    late_timer_ns: what a timer of this machine was late by meanwhile, in the mean.
    """

    start_ns: int
    end_ns: int
    late_timer_ns: int

    @property
    def wall_ns(self) -> int:
        """The length of the phase in ns."""
        return self.end_ns - self.start_ns

    def holds(self, times: Array) -> Array:
        """A mask of the times within the phase."""
        inside: Array = (times > self.start_ns) & (times <= self.end_ns)
        return inside


@dataclass
class Run:
    """A trainer under way, recorded since before its first call."""

    program: Program
    knobs: Path
    host_knobs: Path
    log: Path
    timers: Path
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def phase(self, name: str, seconds: float, fault: AbstractContextManager[object] | None = None) -> None:
        """Lets it run for a while, with a fault in effect."""
        with fault or nullcontext():
            start_ns = time.monotonic_ns()
            time.sleep(seconds)
            assert self.program.process.poll() is None, "".join(self.program.errors)
            self.bounds[name] = start_ns, time.monotonic_ns()

    def goes_first(self) -> None:
        """Gives its threads a real-time policy, so that other tests do not disturb them."""
        for tid in threads(self.program.pid):
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setscheduler(tid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))

    def hogs(self) -> AbstractContextManager[object]:
        """Two spinning processes for each CPU, in the trainer's own session."""
        return Fault("cpu_hog").apply(Workload(pid=self.program.pid, knobs=self.knobs, host_knobs=self.host_knobs))

    @contextmanager
    def device(self, **values: float) -> Iterator[None]:
        """Changes knobs of the simulated GPU within the block."""
        with Knobs(self.knobs) as knobs:
            before = {name: getattr(knobs, name) for name in values}
            for name, value in values.items():
                setattr(knobs, name, value)
            try:
                yield
            finally:
                for name, value in before.items():
                    setattr(knobs, name, value)

    @contextmanager
    def host(self, **values: float) -> Iterator[None]:
        """Changes knobs of the training program within the block."""
        knobs = HostKnobs(self.host_knobs)
        before = knobs.change(**values)
        try:
            yield
        finally:
            knobs.write(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Sums over sync intervals: GPU idle, busy, returned late."""

    idle_ns: int
    busy_ns: int
    return_delay_ns: int

    @property
    def wall_ns(self) -> int:
        """All of it."""
        return self.idle_ns + self.busy_ns + self.return_delay_ns


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Both sides of a finished run.

    Sync intervals are `store.arrays.SYNC_INTERVAL_DTYPE` with their times on CLOCK_MONOTONIC; synced_steps: the
    trainer's own log of the steps that end with a sync; runnable_in_syncs_ns: of the whole recording, from the
    operations' exact sums.
    """

    pid: int
    sync_intervals: Array
    truth: Truth
    synced_steps: list[Step]
    phases: dict[str, Phase]
    runnable_in_syncs_ns: int

    def gpu_stream(self, stream: int) -> Array:
        """The sync intervals of one stream, by the handle that the simulator knows it by."""
        key = LEGACY_STREAM if stream == 1 else stream
        mine: Array = self.sync_intervals[self.sync_intervals["stream"] == key]
        return mine

    def syncs(self, stream: int) -> Array:
        """The simulator's syncs of that stream, without the first, which ends no sync interval."""
        mine: Array = self.truth.interval_ends[self.truth.interval_ends["stream"] == stream]
        return mine[mine["begin_ns"] > 0]

    def main_stream(self, phase: str | None = None) -> Array:
        """The sync intervals of the default stream, which the training loop waits for; of one phase or all."""
        sync_intervals = self.gpu_stream(1)
        return (
            sync_intervals if phase is None else sync_intervals[self.phases[phase].holds(sync_intervals["sync_end_ns"])]
        )

    def step_lost_ns(self, phase: str, baseline: str) -> float:
        """What the phase lost by the trainer's own log: its length beyond that many median periods of the baseline."""
        median_ns = np.median(np.diff(self._step_ends(baseline)))
        return float(self.phases[phase].wall_ns - median_ns * (len(self._step_ends(phase)) - 1))

    def _step_ends(self, phase: str) -> Array:
        ends = np.array([step.t_ns for step in self.synced_steps])
        bounds = self.phases[phase]
        inside: Array = ends[(ends >= bounds.start_ns) & (ends <= bounds.end_ns)]
        return inside


@contextmanager
def recorded(
    folder: Path,
    mode: Mode,
    *arguments: object,
    sync_every: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[tuple[Run, list[Recording]]]:
    """A trainer under `ingero trace`, with these variables; on leaving the block, the list holds its recording."""
    gate, truth = folder / "go", folder / "truth.%p"
    knobs, host_knobs, log = folder / "knobs", folder / "host_knobs", folder / "steps.jsonl"
    timers = folder / "timers"
    given = {**os.environ, **environment(build(), ctl=knobs, trace=truth, sched=mode), **(variables or {})}
    options = ["--gate", gate, "--seconds", LONGEST_RUN_S, "--out", log, "--knob", host_knobs]
    options += ["--sync-every", sync_every]
    result: list[Recording] = []
    with (
        watched_timers(timers),
        Program.module("train", *options, *arguments, environment=given) as program,
    ):
        pid = int(program.wait_for("loaded")[0])
        with tracing(folder, pids=[pid]) as tracer:
            gate.touch()
            program.wait_for("ready")
            run = Run(program, knobs=knobs, host_knobs=host_knobs, log=log, timers=timers)
            for _ in range(WARM_UP_SECONDS):
                tracer.wait_for("second")
            yield run, result
            program.stop()
            tracer.wait_for("second")
        result.append(load(tracer.database, read_all(truth), run, sync_every))


def load(database: Path, truth: Truth, run: Run, sync_every: int = 1) -> Recording:
    """Both sides of a run that has ended."""
    log = [step for step in steps.read(run.log) if (step.step + 1) % sync_every == 0]
    with open_reader(database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        sync_intervals = reader.sync_intervals(window)
        pairs = np.array(
            list(reader.connection.execute("SELECT mono_ns, unix_ns FROM raw_clock_pairs ORDER BY mono_ns")), np.int64
        )
        runnable_ns = sum(
            total.clocks.runq_ns for total in reader.op_totals(window) if total.clocks and total.name in SYNCHRONIZING
        )
    to_mono = _to_mono(sync_intervals["sync_end_ns"], pairs)
    for name in TIMES:
        sync_intervals[name] += to_mono
    return Recording(
        pid=run.program.pid,
        sync_intervals=sync_intervals,
        truth=truth,
        synced_steps=log,
        phases={name: _phase(run.timers, log, *bounds) for name, bounds in run.bounds.items()},
        runnable_in_syncs_ns=runnable_ns,
    )


def _to_mono(unix_ns: Array, pairs: Array) -> Array:
    """What turns these times into CLOCK_MONOTONIC, by the nearest pair: a step of the clock in between is rare."""
    nearest = np.abs(unix_ns[:, None] - pairs[None, :, 1]).argmin(axis=1)
    difference: Array = pairs[nearest, 0] - pairs[nearest, 1]
    return difference


def _phase(timers: Path, log: list[Step], start_ns: int, end_ns: int) -> Phase:
    """From the end of its first step to the end of its last: sync intervals and steps then begin and end together."""
    ends = [step.t_ns for step in steps.between(log, start_ns, end_ns)]
    return Phase(start_ns=ends[0], end_ns=ends[-1], late_timer_ns=mean_lateness_ns(timers, ends[0], ends[-1]))


def matched(sync_intervals: Array, syncs: Array) -> Array:
    """The sync of each epoch: the last one that had returned when the agent saw the return."""
    assert len(syncs), "the simulator saw no sync of this stream"
    places = np.searchsorted(syncs["return_ns"], sync_intervals["sync_end_ns"] + MATCH_NS, side="right") - 1
    assert (places >= 0).all(), "a sync interval ended before the simulator's first"
    assert len(np.unique(places)) == len(places), "two sync intervals end in one sync"
    found: Array = syncs[places]
    return found


def recorded_parts(sync_intervals: Array) -> Parts:
    """The parts as the agent recorded them."""
    return Parts(
        idle_ns=int(sync_intervals["idle_ns"].sum()),
        busy_ns=int(sync_intervals["busy_ns"].sum()),
        return_delay_ns=int(sync_intervals["return_delay_ns"].sum()),
    )


def true_parts(sync_intervals: Array, syncs: Array) -> Parts:
    """As the simulator has them; the wait begins where the agent saw it begin, a little or a preemption earlier."""
    ready = np.maximum(syncs["device_end_ns"], sync_intervals["sync_start_ns"])
    return Parts(
        idle_ns=int((syncs["first_enqueue_ns"] - syncs["begin_ns"]).sum()),
        busy_ns=int((ready - syncs["first_enqueue_ns"]).sum()),
        return_delay_ns=int((syncs["return_ns"] - ready).sum()),
    )


def flagged(sync_intervals: Array, flag: SyncIntervalFlag) -> int:
    """The number of sync intervals with the flag."""
    return int(((sync_intervals["flags"] & int(flag)) != 0).sum())
