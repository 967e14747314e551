"""Each fault does to a real training loop what its name says, and leaves everything as it was."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.faults import NAMES, Fault, FaultError, Injection
from ingero.demo.faults.cgroups import Group
from ingero.demo.faults.model import WorkloadSetup
from ingero.demo.faults.processes import threads, tree
from ingero.demo.faults.rehearsal import Rehearsal, rehearse
from ingero.demo.gpusim import build
from ingero.demo.gpusim.knobs import DEFAULTS, Knobs
from ingero.demo.workloads import steps
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.steps import Step

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]

WATCH_S = 0.8
ROUNDS = 3  # other work on the machine may drown a fault, hardly three times
MOST_ROUNDS = 8  # while it is seen to do so without the fault
DISTURBED_RATIO = 0.1  # waiting for a CPU or for data without any fault, share of the time
WARM_STEPS = 30  # caches and allocators are warm after that
CALM_STEPS = 5  # what one fault left in queues is gone before the next
LONGEST_S = 600  # ends the shared workload if the tests are killed


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where workloads are started. scratch: on a disk, where there is direct I/O; plain: under way, as most want it."""

    scratch: Path
    plain: Rehearsal

    def environment(self, name: str) -> dict[str, str]:
        """Of a workload with a device of its own."""
        return simulated(self.scratch / f"{name}.ctl")


def simulated(knobs: Path) -> dict[str, str]:
    return {**os.environ, **build.environment(build.build(), sched="block", ctl=knobs)}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """pytest's own folder may lie in memory. The workload that faults share has no arguments of its own."""
    scratch = Path(f"/var/tmp/ingero-faults-{os.getpid()}")
    scratch.mkdir()
    try:
        with rehearse(Fault("gpu_throttle"), scratch, simulated(scratch / "ctl"), seconds=LONGEST_S) as plain:
            plain.watch(lambda seen: len(seen) >= WARM_STEPS)
            yield Place(scratch=scratch, plain=plain)
    finally:
        shutil.rmtree(scratch)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What was seen of the workload in a span of time."""

    pid: int
    steps: list[Step]
    elapsed_s: float
    cpu_wait_ns: int

    @property
    def pace_s(self) -> float:
        """Time for each step; unlike their mean length it also counts a step that has not ended."""
        return self.elapsed_s / len(self.steps)

    @property
    def disturbed_ratio(self) -> float:
        """Waiting for a CPU or for data, share of the time."""
        return (self.cpu_wait_ns + sum(step.data_ns for step in self.steps)) / (self.elapsed_s * 1e9)


@dataclass(frozen=True)
class Disturbed:
    """A check that failed, and how much others kept the workload waiting before the fault began."""

    error: AssertionError
    ratio: float


Check = Callable[[Watch, Watch, Injection], None]


def run_queue_wait_ns(pid: int) -> int:
    """What the kernel says that all threads waited for a CPU."""
    return sum(schedstat(tid)[1] for tid in threads(pid))


def schedstat(tid: int) -> list[int]:
    """Time on a CPU, time waiting for one (both ns), and how often it got one."""
    return [int(value) for value in Path(f"/proc/{tid}/schedstat").read_text().split()]


def last_cpu(tid: int) -> int:
    return int(Path(f"/proc/{tid}/stat").read_text().rpartition(")")[2].split()[36])


def slower(factor: float) -> Check:
    def check(before: Watch, during: Watch, _injection: Injection) -> None:
        assert during.pace_s > factor * before.pace_s

    return check


def waits_for_cpu(before: Watch, during: Watch, _injection: Injection) -> None:
    assert during.cpu_wait_ns > 1.3 * before.cpu_wait_ns
    assert during.cpu_wait_ns > 0.05e9 * WATCH_S


def leaves_the_rest_to_the_culprits(_before: Watch, _during: Watch, injection: Injection) -> None:
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in injection.culprits} == {19}
    assert sum(schedstat(pid)[0] for pid in injection.culprits) > 0.05e9 * WATCH_S


def stays_on_one_cpu(_before: Watch, during: Watch, _injection: Injection) -> None:
    assert len({last_cpu(tid) for tid in threads(during.pid)}) == 1


def waits_for_data(before: Watch, during: Watch, _injection: Injection) -> None:
    assert statistics.mean(s.data_ns for s in during.steps) > 2 * statistics.mean(s.data_ns for s in before.steps)
    assert during.pace_s > 1.02 * before.pace_s


def is_throttled(_before: Watch, _during: Watch, injection: Injection) -> None:
    assert group(injection).throttled_periods() > 0


def meets_its_limit(_before: Watch, _during: Watch, injection: Injection) -> None:
    assert group(injection).limit_hits() > 0


def group(injection: Injection) -> Group:
    (path,) = injection.cgroups
    return Group(path=path, is_v2=(path / "cgroup.events").exists())


CHECKS: Mapping[str, Check] = {
    "cpu_hog": waits_for_cpu,
    "cpu_hog_nice": leaves_the_rest_to_the_culprits,
    "worker_cpu_starved": slower(1.2),
    "nice_trainer": slower(2),
    "pin_one_cpu": stays_on_one_cpu,
    "cfs_quota": is_throttled,
    "io_storm": waits_for_data,
    "slow_worker": slower(2),
    "gil_hog": slower(1.3),
    "mem_reclaim": meets_its_limit,
    "mem_thrash": meets_its_limit,
    "pgfault_storm": waits_for_cpu,
    "tcp_loss": slower(1.3),
    "gpu_throttle": slower(1.8),
    "pcie_slow": slower(2),
    "malloc_storm": slower(1.2),
    "launch_slow": slower(1.2),
    "nccl_straggler": slower(1.4),
}
STANDSTILLS = ("sigstop", "gpu_hang")
OWN_WORKLOAD = {
    *("worker_cpu_starved", "pin_one_cpu", "gil_hog", "io_storm", "mem_reclaim", "mem_thrash", "tcp_loss"),
    *("pcie_slow", "malloc_storm", "nccl_straggler"),
}


@contextmanager
def rehearsal(name: str, place: Place) -> Iterator[tuple[Fault, Rehearsal]]:
    """A fault and its workload: the shared one, where it wants no other."""
    fault = Fault(name)
    reason = fault.requires()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:
        if name in OWN_WORKLOAD:
            running = stack.enter_context(rehearse(fault, place.scratch, place.environment(name)))
            running.watch(lambda seen: len(seen) >= WARM_STEPS)
        else:
            assert stack.enter_context(fault.prepare(place.scratch)) == WorkloadSetup(), (
                "it wants a workload of its own"
            )
            running = place.plain
            running.watch(lambda seen: len(seen) >= CALM_STEPS)
        yield fault, running


def watch(running: Rehearsal) -> Watch:
    pid, started_s = running.program.pid, time.monotonic()
    waited_ns = run_queue_wait_ns(pid)
    seen = running.watch_for(WATCH_S)
    return Watch(
        pid=pid,
        steps=seen,
        elapsed_s=time.monotonic() - started_s,
        cpu_wait_ns=run_queue_wait_ns(pid) - waited_ns,
    )


def observe(fault: Fault, running: Rehearsal, check: Check) -> Disturbed | None:
    """What the check says of it; None if it holds."""
    before = watch(running)
    with without_trace(running) as injections, fault.apply(running.workload) as injection:
        injections.append(injection)
        try:
            check(before, watch(running), injection)
        except AssertionError as error:
            return Disturbed(error, before.disturbed_ratio)
    return None


@contextmanager
def without_trace(running: Rehearsal) -> Iterator[list[Injection]]:
    """The workload is as it was, and no culprit is left, once the faults that it is told of are over."""
    injections: list[Injection] = []
    before = state_of(running)
    yield injections
    assert injections
    assert state_of(running) == before
    assert not [pid for one in injections for pid in one.culprits if pid != os.getpid() and tree(pid)]


def assert_nothing_is_left() -> None:
    assert not groups_of_ours()
    assert not list(Path("/sys/class/net").glob(f"igr{os.getpid()}*"))


@pytest.mark.alone  # compares the pace of a loop with and without the fault
@pytest.mark.parametrize("name", CHECKS)
def test_a_fault_shows_where_it_should_and_leaves_no_trace(name: str, place: Place) -> None:
    with rehearsal(name, place) as (fault, running):
        for number in range(1, MOST_ROUNDS + 1):
            failed = observe(fault, running, CHECKS[name])
            if failed is None:
                break
            if number >= ROUNDS and (failed.ratio < DISTURBED_RATIO or number == MOST_ROUNDS):
                raise failed.error
    assert_nothing_is_left()


@pytest.mark.parametrize("name", STANDSTILLS)
def test_a_standstill_lasts_as_long_as_the_fault(name: str, place: Place) -> None:
    with rehearsal(name, place) as (fault, running):
        began = len(steps.read(running.log))
        with without_trace(running) as injections, fault.apply(running.workload) as injection:
            injections.append(injection)
            time.sleep(0.3)
        running.watch(lambda seen: len(seen) >= 2)
        assert max(s.step_ns for s in steps.read(running.log)[began:]) > 0.29e9
    assert_nothing_is_left()


def test_an_oom_kill_next_door_leaves_the_workload_alone(place: Place) -> None:
    with rehearsal("oom", place) as (fault, running):
        with without_trace(running) as injections, fault.apply(running.workload) as injection:
            injections.append(injection)
            while group(injection).oom_kills() == 0:
                assert tree(injection.culprits[0])
                time.sleep(0.01)
        assert running.watch(lambda seen: len(seen) >= 5)
    assert_nothing_is_left()


def test_every_fault_is_tested() -> None:
    assert set(NAMES) == {*CHECKS, *STANDSTILLS, "oom"}


def state_of(running: Rehearsal) -> dict[str, object]:
    """Everything of the workload that a fault may change."""
    pids = tree(running.program.pid)
    with Knobs(running.workload.knobs) as knobs:
        device = {name: getattr(knobs, name) for name in DEFAULTS}
    return {
        "device": device,
        "host": HostKnobs(running.workload.host_knobs).read(),
        "priorities": {tid: os.getpriority(os.PRIO_PROCESS, tid) for tid in threads(running.program.pid)},
        "affinities": {tid: os.sched_getaffinity(tid) for tid in threads(running.program.pid)},
        "cgroups": {pid: Path(f"/proc/{pid}/cgroup").read_text() for pid in pids},
    }


def groups_of_ours() -> list[str]:
    """Control groups that this process has made and not removed; others come and go meanwhile."""
    names = (name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders)
    return [name for name in names if name.startswith("ingero-") and name.endswith(f"-{os.getpid()}")]


def test_a_straggler_is_only_the_one_rank(place: Place) -> None:
    with rehearsal("nccl_straggler", place) as (fault, running):
        with fault.apply(running.workload):
            during = [knobs.read() for knobs in of_ranks(running)]
        after = [knobs.read() for knobs in of_ranks(running)]
    assert during == [HostState(), HostState(worker_sleep_ms=20)]
    assert after == [HostState(), HostState()]


def of_ranks(running: Rehearsal) -> list[HostKnobs]:
    return [HostKnobs(Path(f"{running.workload.host_knobs}.{rank}")) for rank in (0, 1)]


def test_culprits_run_under_the_name_they_were_given(place: Place) -> None:
    with Fault("cpu_hog", culprit="fluent-bit").apply(place.plain.workload) as injection:
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in injection.culprits}
    assert names == {"fluent-bit"}


def test_an_unknown_fault_lists_the_known_ones() -> None:
    with pytest.raises(FaultError) as caught:
        Fault("cosmic_rays")
    assert "cpu_hog" in caught.value.hint
