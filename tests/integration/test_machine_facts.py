"""What a diagnosis needs to know of the machine: GPU samples, scheduling, CPUs, and host events made by real faults."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ingero.demo.faults import Fault
from ingero.demo.faults.cgroups import Group
from ingero.demo.faults.device import THERMAL_SLOWDOWN
from ingero.demo.faults.rehearsal import Rehearsal, rehearse
from ingero.ops import HostOp, IoOp, Source
from ingero.store.host_events import HostEvent
from ingero.store.machine import GpuUse, Scheduling
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window
from tests.integration.targets import Simulation, simulation
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration

LONGEST_S = 120  # ends the workload if the test is killed


@pytest.fixture
def simulated(tmp_path: Path) -> Simulation:
    return simulation(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A workload, perhaps with a fault in effect, being recorded."""

    rehearsal: Rehearsal
    tracer: Tracer

    def seconds(self, count: int) -> None:
        """Waits until so many more seconds are recorded."""
        for _ in range(count):
            self.tracer.wait_for("second")


def nvml_environment(simulated: Simulation) -> dict[str, str]:
    """What the agent needs to find the simulated NVML."""
    variables = {name: value for name, value in simulated.environment.items() if name.startswith("GPUSIM_")}
    del variables["GPUSIM_TRACE"]
    return variables | {"LD_LIBRARY_PATH": str(simulated.libraries)}


@contextmanager
def traced(
    simulated: Simulation, name: str, *, is_applied: bool = True, environment: Mapping[str, str] | None = None
) -> Iterator[Traced]:
    """The workload of a fault, traced; with the fault in effect unless the test applies it."""
    fault = Fault(name)
    if reason := fault.requires():
        pytest.skip(reason)
    with rehearse(fault, simulated.folder, simulated.environment, seconds=LONGEST_S) as rehearsal:
        pids = [rehearsal.workload.pid]
        with tracing(simulated.folder, pids=pids, environment=environment) as tracer:
            if not is_applied:
                yield Traced(rehearsal=rehearsal, tracer=tracer)
                return
            with fault.apply(rehearsal.workload):
                yield Traced(rehearsal=rehearsal, tracer=tracer)


@contextmanager
def opened(tracer: Tracer) -> Iterator[tuple[Reader, Window]]:
    """The recording when it is complete, and all of its time: the first samples come before the first call."""
    with open_reader(tracer.database) as reader:
        (session,) = reader.sessions()
        assert session.stopped_ns is not None
        yield reader, Window(begin_ns=session.started_ns, end_ns=session.stopped_ns + 1)


def events(reader: Reader, window: Window, source: Source, op: int) -> list[HostEvent]:
    return [one for one in reader.host_events(window, source=source) if one.op == op]


# GPUs


SAMPLE_S = 0.05  # a sample of a simulated GPU is at its end by then


@dataclass(frozen=True, kw_only=True)
class Throttled:
    """A recording of a GPU that was throttled in the end, just after this moment (Unix time)."""

    tracer: Tracer
    pid: int
    throttled_ns: int


@pytest.fixture(scope="module")
def throttled(tmp_path_factory: pytest.TempPathFactory) -> Throttled:
    simulated = simulation(tmp_path_factory.mktemp("throttled"))
    with traced(simulated, "gpu_throttle", is_applied=False, environment=nvml_environment(simulated)) as run:
        run.seconds(4)
        throttled_ns = time.time_ns()
        time.sleep(SAMPLE_S)
        with Fault("gpu_throttle").apply(run.rehearsal.workload):
            run.seconds(3)
    return Throttled(tracer=run.tracer, pid=run.rehearsal.workload.pid, throttled_ns=throttled_ns)


def test_each_second_has_a_sample_of_each_gpu_with_its_processes(throttled: Throttled) -> None:
    with opened(throttled.tracer) as (reader, window):
        samples = reader.gpu_samples(Window(begin_ns=window.begin_ns, end_ns=throttled.throttled_ns))
        assert "gpu_samples_missed" not in {drop.counter for drop in reader.drops()}
        assert all("GPU" not in session.not_traced for session in reader.sessions())
    assert len(samples) >= 4
    assert {one.gpu_index for one in samples} == {0}
    assert max(one.gpu_percent or 0 for one in samples) > 0
    assert throttled.pid in {owner for one in samples for owner, _ in one.processes}
    assert all(one.memory_total_bytes and one.sm_clock_mhz == one.max_sm_clock_mhz for one in samples)


def test_a_throttled_gpu_shows_its_reason_and_clock(throttled: Throttled) -> None:
    with opened(throttled.tracer) as (reader, window):
        slow: list[GpuUse] = [one for one in reader.gpu_samples(window) if one.sm_clock_mhz == 792]
    assert slow
    assert all((one.throttle_reasons or 0) & THERMAL_SLOWDOWN for one in slow)
    assert all((one.max_sm_clock_mhz or 0) > 792 for one in slow)


HANGING = r"""
#include <unistd.h>
typedef unsigned long long u64;
static int device;
static int calls;
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &device; return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) { s[0] = 'G'; s[1] = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, unsigned *u)
{
	if (calls++)
		for (;;)
			pause();
	u[0] = 5;
	u[1] = 1;
	return 0;
}
"""


def test_a_driver_that_hangs_costs_samples_and_is_counted_while_the_recording_goes_on(simulated: Simulation) -> None:
    folder = simulated.folder / "nvml"
    folder.mkdir()
    (folder / "nvml.c").write_text(HANGING)
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    environment = {"LD_LIBRARY_PATH": str(folder)}
    with traced(simulated, "gpu_throttle", is_applied=False, environment=environment) as run:
        run.seconds(6)
    with opened(run.tracer) as (reader, window):
        assert [one.gpu_percent for one in reader.gpu_samples(window)] == [5]
        drops = {drop.counter: drop.count for drop in reader.drops()}
        assert len(reader.snapshots(window)) >= 6
    assert drops["gpu_samples_missed"] >= 2


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A recording of a loop that got another priority, then fewer CPUs, and was killed; without NVML."""

    tracer: Tracer
    pid: int
    nice_before: int


NICE_AFTER = 19


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Changed:
    with traced(simulation(tmp_path_factory.mktemp("changed")), "pin_one_cpu", is_applied=False) as run:
        run.seconds(2)
        pid = run.rehearsal.workload.pid
        nice_before = os.getpriority(os.PRIO_PROCESS, pid)
        os.setpriority(os.PRIO_PROCESS, pid, NICE_AFTER)
        run.seconds(2)
        os.sched_setaffinity(pid, {1})
        run.seconds(2)
        os.kill(pid, signal.SIGKILL)
        run.tracer.wait_for("finished")
        run.tracer.process.wait()
    return Changed(tracer=run.tracer, pid=pid, nice_before=nice_before)


def test_without_nvml_the_recording_says_that_gpus_were_not_sampled(changed: Changed) -> None:
    with opened(changed.tracer) as (reader, window):
        assert '"GPU": "NVML' in reader.sessions()[-1].not_traced
        assert reader.gpu_samples(window) == []
        assert "gpu_samples_missed" not in {drop.counter for drop in reader.drops()}


# The scheduler


def of_leader(reader: Reader, window: Window, pid: int) -> list[Scheduling]:
    return [one for one in reader.scheduling(window) if one.pid == one.tid == pid]


def test_a_change_of_priority_and_of_cpus_in_mid_run_gives_a_row_each(changed: Changed) -> None:
    with opened(changed.tracer) as (reader, window):
        rows = of_leader(reader, window, changed.pid)
        late = Window(begin_ns=rows[-1].time_ns + 1, end_ns=window.end_ns)
        in_force = of_leader(reader, late, changed.pid)
    before, everywhere = changed.nice_before, rows[0].cpus_allowed
    assert [(one.nice, one.cpus_allowed) for one in rows] == [
        (before, everywhere),
        (NICE_AFTER, everywhere),
        (NICE_AFTER, "1"),
    ]
    assert in_force == rows[-1:]
    assert rows[0].process is not None
    assert rows[0].policy == "other"


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """A recording of a loop that met one fault after the other, and who made them."""

    tracer: Tracer
    pid: int
    hog: int
    eater: int
    eaters_group: int


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    """A quota, a stop, an OOM kill next door, and hogs: each wants the same loop."""
    for name in ("cfs_quota", "oom"):
        if reason := Fault(name).requires():
            pytest.skip(reason)
    with traced(simulation(tmp_path_factory.mktemp("disturbed")), "sigstop", is_applied=False) as run:
        workload = run.rehearsal.workload
        run.seconds(1)
        with Fault("cfs_quota").apply(workload):
            run.seconds(3)
        with Fault("sigstop").apply(workload):
            run.seconds(1)
        run.seconds(1)
        with Fault("oom").apply(workload) as injection:
            (eater,), (group,) = injection.culprits, injection.cgroups
            inode = group.stat().st_ino
            while Group(path=group, is_v2=(group / "cgroup.events").exists()).oom_kills() == 0:
                run.seconds(1)
        with Fault("cpu_hog").apply(workload) as injection:
            os.setpriority(os.PRIO_PROCESS, injection.culprits[0], -3)
            run.seconds(5)
    return Disturbed(tracer=run.tracer, pid=workload.pid, hog=injection.culprits[0], eater=eater, eaters_group=inode)


def test_a_quota_that_is_set_in_mid_run_is_seen(disturbed: Disturbed) -> None:
    with opened(disturbed.tracer) as (reader, window):
        quotas = {(one.quota_us, one.period_us) for one in of_leader(reader, window, disturbed.pid)}
    assert (25_000, 100_000) in quotas


def test_who_takes_cpu_time_is_looked_at_too(disturbed: Disturbed) -> None:
    with opened(disturbed.tracer) as (reader, window):
        rows = [one for one in reader.scheduling(window) if one.process is None]
    assert {one.nice for one in rows if one.pid == disturbed.hog} >= {-3}
    assert not {one.pid for one in rows} & {disturbed.pid}


def test_cpus_are_accounted_one_by_one(changed: Changed) -> None:
    with opened(changed.tracer) as (reader, window):
        cpus = reader.cpu_seconds(window)
    assert set(cpus["cpu"].tolist()) == os.sched_getaffinity(0)
    assert len(cpus) >= 3 * os.cpu_count()  # type: ignore[operator]  # known where tests run
    parts = sum(cpus[name] for name in ("busy_ns", "idle_ns", "iowait_ns", "irq_ns", "steal_ns"))
    # ticks of 10 ms at both ends, and a reading that comes late
    assert np.median(parts / cpus["elapsed_ns"]) == pytest.approx(1, abs=0.1)


# What happens to the host


def test_a_stop_names_its_sender_and_lasts_until_the_process_is_continued(disturbed: Disturbed) -> None:
    pid = disturbed.pid
    with opened(disturbed.tracer) as (reader, window):
        stop, go = events(reader, window, Source.HOST, HostOp.STOP_SIGNAL)
        number = next(one.process for one in reader.processes() if one.pid == pid)
        stopped_ns = next(one.clocks.stopped_ns for one in reader.thread_state_totals(window) if one.process == number)
    assert (stop.code, go.code) == (signal.SIGSTOP, signal.SIGCONT)
    assert (stop.pid, stop.other_pid, stop.process) == (pid, os.getpid(), number)
    assert stop.comm == Path("/proc/self/comm").read_text().strip()
    assert stop.duration_ns == go.start_ns - stop.start_ns
    assert stopped_ns >= stop.duration_ns * 0.9  # of each thread; signals take a moment to arrive


def test_an_oom_kill_says_who_how_large_and_whose_limit(disturbed: Disturbed) -> None:
    with opened(disturbed.tracer) as (reader, window):
        kills = events(reader, window, Source.HOST, HostOp.OOM_KILL)
    (kill,) = (one for one in kills if one.other_pid == disturbed.eater)
    assert (kill.comm, kill.limit) == ("eater", "cgroup")
    assert kill.cgroup_id == disturbed.eaters_group
    assert 20 << 20 < (kill.size_bytes or 0) < 60 << 20  # of a limit of 48 MiB


def major_faults(pid: int) -> int:
    """Of a process and its children, as the kernel counts them."""
    family = [pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    stats = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family]
    return sum(int(fields[9]) for fields in stats)


def test_reclaim_below_a_limit_and_the_faults_it_brings_belong_to_the_process(simulated: Simulation) -> None:
    with traced(simulated, "mem_thrash") as run:
        pid = run.rehearsal.workload.pid
        run.seconds(1)  # the agent has read once what it had before
        before = major_faults(pid)
        run.seconds(3)
        while major_faults(pid) == before:  # it may not have come back yet to what was taken from it
            run.seconds(1)
        run.seconds(1)
    with opened(run.tracer) as (reader, window):
        found = events(reader, window, Source.HOST, HostOp.DIRECT_RECLAIM)
        faults = {one.pid: one.major_faults for one in reader.thread_state_totals(window)}
        reads = events(reader, window, Source.IO, IoOp.READ)
    mine = [one for one in found if one.pid in faults]
    assert mine
    assert {one.limit for one in mine} == {"cgroup"}
    assert all(one.duration_ns for one in mine)
    assert pid in faults
    assert sum(count or 0 for count in faults.values()) > 0
    assert any(one.is_page_fault for one in reads)


def test_block_io_says_device_issuer_and_both_times(simulated: Simulation) -> None:
    with traced(simulated, "io_storm") as run:
        run.seconds(3)
    with opened(run.tracer) as (reader, window):
        found = reader.host_events(window, source=Source.IO)
        pids = {one.pid for one in reader.processes()}
    mine = [one for one in found if one.pid in pids and one.op == IoOp.READ]
    assert mine
    assert all(one.device and one.size_bytes and one.duration_ns and one.queue_ns is not None for one in mine)
    device = mine[0].device or 0
    assert (Path("/sys/dev/block") / f"{device >> 20}:{device & 0xFFFFF}").exists()


def test_a_retransmit_names_both_ends(simulated: Simulation) -> None:
    with traced(simulated, "tcp_loss") as run:
        run.seconds(4)
    with opened(run.tracer) as (reader, window):
        found = reader.host_events(window, source=Source.TCP)
    assert found
    assert all(one.segments and one.ports and " > " in one.addresses for one in found)


def test_an_exit_says_its_code_or_the_signal_that_ended_it(changed: Changed) -> None:
    with opened(changed.tracer) as (reader, window):
        codes = {one.pid: one.code for one in events(reader, window, Source.HOST, HostOp.PROCESS_EXIT)}
    assert codes[changed.pid] == -signal.SIGKILL
