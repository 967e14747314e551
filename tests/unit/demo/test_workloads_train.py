"""The trainer on the simulated GPU, judged by its own log."""

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from ingero.demo.gpusim import build, truth
from ingero.demo.gpusim.knobs import Knobs
from ingero.demo.workloads import steps
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.program import Program, WorkloadError
from ingero.demo.workloads.steps import Step
from tests.disturbance import measured

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU")

DEVICE_NS = 6_000_000  # a little less than the kernels of one default step last: no step can be faster for long

Train = Callable[..., list[Step]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, **build.environment(build.build(), sched="block", ctl=tmp_path / "ctl")}


@pytest.fixture
def train(environment: dict[str, str], tmp_path: Path) -> Train:
    """Return a function that runs the trainer to its end and returns its steps."""

    def run(*arguments: object) -> list[Step]:
        log = tmp_path / "steps"
        with Program.module("train", "--out", log, *arguments, environment=environment) as program:
            program.finish()
        return steps.read(log)

    return run


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_takes_as_many_steps_as_asked(train: Train) -> None:
    assert [s.step for s in train("--steps", 7)] == list(range(7))


def test_steps_follow_each_other_without_overlap(train: Train) -> None:
    run = train("--steps", 10)
    assert all(after.t_ns - after.step_ns >= before.t_ns for before, after in itertools.pairwise(run))


@pytest.mark.parametrize("autograd", [(), ("--autograd-thread",)])
def test_a_step_launches_through_both_libraries(
    train: Train, environment: dict[str, str], tmp_path: Path, autograd: tuple[str, ...]
) -> None:
    environment["GPUSIM_TRACE"] = str(tmp_path / "truth")
    train("--steps", 10, *autograd)
    seen = truth.read(tmp_path / "truth")
    assert seen.count("cudaLaunchKernel") == 10 * 81
    assert seen.count("cuLaunchKernel") == 10 * 72  # matrix products, which never pass the runtime


@pytest.mark.parametrize("major", ["11", "12", "13"])
def test_it_trains_on_every_runtime(
    train: Train, environment: dict[str, str], major: Literal["11", "12", "13"]
) -> None:
    environment |= build.environment(build.build(), runtime=major)
    assert len(train("--steps", 5, "--autograd-thread", "--pin-memory", "--streams")) == 5


@pytest.mark.parametrize("sync", ["stream", "event", "memcpy", "device", "query", "never"])
def test_no_way_of_waiting_is_faster_than_the_device(train: Train, sync: str) -> None:
    run = train("--steps", 40, "--sync", sync)
    still_queued = 8 if sync == "never" else 0  # steps; the queue holds 1,024 launches of 154 a step
    assert sum(step.step_ns for step in run) >= (len(run) - still_queued) * DEVICE_NS


@pytest.mark.parametrize(
    "arguments",
    [
        ("--streams", "--pin-memory"),
        ("--streams", "unordered"),
        ("--autograd-thread", "--bystanders", 2),
        ("--workers", 0, "--eval-every", 5),
        ("--workers", 2, "--prefetch", 4, "--launches", 50),
        ("--accumulate", 4, "--heap", 1000),
        ("--us", 15, "--sequence", 4, "--vary"),
        ("--graph",),
    ],
)
def test_every_shape_of_the_loop_trains(train: Train, arguments: tuple[object, ...]) -> None:
    assert len(train("--steps", 12, *arguments)) == 12


def test_a_slow_worker_is_waited_for(train: Train, tmp_path: Path) -> None:
    knob = tmp_path / "knob"
    HostKnobs(knob).write(HostState(worker_sleep_ms=25))
    run = train("--steps", 12, "--knob", knob)[4:]
    assert steps.median_ns(run) >= 24e6
    assert min(s.data_ns for s in run) > 5e6


def periods_ns(run: list[Step]) -> list[int]:
    """The lengths of runs of 20 steps, the first one (in which the launch queue fills) left out."""
    ends = [s.t_ns for s in run if s.step % 20 == 19]
    return [after - before for before, after in itertools.pairwise(ends)]


def test_a_stall_is_exposed_where_every_step_waits_for_the_device(train: Train, tmp_path: Path) -> None:
    HostKnobs(tmp_path / "knob").write(HostState(stall_ms=20, stall_every=20))
    run = train("--steps", 80, "--knob", tmp_path / "knob")
    assert min(periods_ns(run)) >= 20 * DEVICE_NS + 20_000_000


def test_running_ahead_hides_a_stall(train: Train, tmp_path: Path) -> None:
    HostKnobs(tmp_path / "knob").write(HostState(stall_ms=20, stall_every=60))  # in the middle of each third period

    def exposed_ns() -> int:
        periods = periods_ns(train("--steps", 240, "--knob", tmp_path / "knob", "--sync-every", 20))
        stalled, quiet = periods[0::3], periods[1::3] + periods[2::3]
        return min(stalled) - min(quiet)

    assert measured(exposed_ns, lambda ns: ns < 15_000_000) < 15_000_000


def test_a_captured_step_is_replayed_with_one_launch(train: Train, environment: dict[str, str], tmp_path: Path) -> None:
    environment["GPUSIM_TRACE"] = str(tmp_path / "truth")
    train("--steps", 10, "--graph")
    calls = truth.read(tmp_path / "truth").calls
    assert calls["runtime", "cudaGraphLaunch"].outer == 7


def test_longer_sequences_are_more_work(train: Train) -> None:
    run = train("--steps", 20, "--us", 15, "--sequence", 8)
    assert min(s.step_ns for s in run) >= 2 * DEVICE_NS


@pytest.mark.parametrize("state", [HostState(metrics_ms=20), HostState(worker_cpu_ms=20)])
def test_what_computes_takes_at_least_its_time(train: Train, tmp_path: Path, state: HostState) -> None:
    HostKnobs(tmp_path / "knob").write(state)
    run = train("--steps", 40, "--knob", tmp_path / "knob")
    assert run[-1].t_ns - run[0].t_ns >= 35 * 20_000_000


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        (("--heap", 1000), HostState(collect_every=2)),
        (("--sync-every", 5), HostState(item_every=1)),
        (("--lock-hog",), HostState(lock_ms=5)),
        (("--native-threads", 2), HostState(native_threads=2)),
        ((), HostState(item_bytes=1 << 20)),
        ((), HostState(reshape_bytes=8 << 20)),
    ],
)
def test_every_callback_trains(train: Train, tmp_path: Path, arguments: tuple[object, ...], state: HostState) -> None:
    HostKnobs(tmp_path / "knob").write(state)
    assert len(train("--steps", 20, "--knob", tmp_path / "knob", *arguments)) == 20


def test_a_checkpoint_is_written_when_its_turn_comes(train: Train, tmp_path: Path) -> None:
    HostKnobs(tmp_path / "knob").write(HostState(checkpoint_every=10))
    train("--steps", 10, "--knob", tmp_path / "knob", "--checkpoint", tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint").stat().st_size == 64 << 20


def test_what_is_leaked_stays_allocated(train: Train, environment: dict[str, str], tmp_path: Path) -> None:
    with Knobs(environment["GPUSIM_CTL"]) as knobs:
        knobs.mem_limit_bytes = 256 << 20
    HostKnobs(tmp_path / "knob").write(HostState(leak_bytes=16 << 20))
    with pytest.raises(WorkloadError, match="cudaMalloc"):
        train("--steps", 40, "--knob", tmp_path / "knob")


def test_churn_pays_for_an_allocation_in_every_step(train: Train, environment: dict[str, str]) -> None:
    with Knobs(environment["GPUSIM_CTL"]) as knobs:
        knobs.malloc_us = 5000
    assert steps.median_ns(train("--steps", 20, "--churn")) >= DEVICE_NS + 5_000_000


def test_small_products_are_bound_by_launches(train: Train, environment: dict[str, str]) -> None:
    with Knobs(environment["GPUSIM_CTL"]) as knobs:
        knobs.launch_us = 50
    launches = 153
    assert steps.median_ns(train("--steps", 20, "--us", 2, "--cpu-ms", 0)) >= launches * 50_000


def test_threads_and_workers_bear_the_names_that_torch_gives_them(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ("--seconds", 60, "--autograd-thread", "--pin-memory", "--out", tmp_path / "steps")
    with Program.module("train", *arguments, environment=environment) as program:
        program.wait_for("ready")
        named: set[str] = set()
        while not {"pt_autograd_0", "pt_data_pin", "pt_data_worker"} <= named:
            tasks = [
                task for pid in (program.pid, *children(program.pid)) for task in Path(f"/proc/{pid}/task").iterdir()
            ]
            named = {(task / "comm").read_text().strip() for task in tasks}
            assert program.process.poll() is None


def test_it_ends_cleanly_when_asked(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "steps"
    with Program.module("train", "--seconds", 60, "--out", log, environment=environment) as program:
        program.wait_for("ready")
        workers = children(program.pid)
        assert program.stop() == 0
    assert workers
    assert not [pid for pid in workers if is_running(pid)]
    assert all(json.loads(line) for line in log.read_text().splitlines())


def test_a_killed_trainer_leaves_no_worker_behind(environment: dict[str, str], tmp_path: Path) -> None:
    with Program.module("train", "--seconds", 60, "--out", tmp_path / "steps", environment=environment) as program:
        program.wait_for("ready")
        workers = children(program.pid)
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        while [pid for pid in workers if is_running(pid)]:
            time.sleep(0.01)  # the test's time limit is the bound


def test_it_makes_no_call_before_its_gate_opens(environment: dict[str, str], tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "steps"
    arguments = ("--steps", 3, "--gate", gate, "--out", log)
    with Program.module("train", *arguments, environment=environment) as program:
        program.wait_for("loaded")
        assert "ready" not in "".join(program.errors)
        gate.touch()
        program.wait_for("ready")
        program.finish()
    assert len(steps.read(log)) == 3


def test_without_a_simulator_it_says_what_is_missing(tmp_path: Path) -> None:
    bare = {**os.environ, "GPUSIM_RUNTIME": "libnonesuch.so"}
    with (
        Program.module("train", "--out", tmp_path / "steps", environment=bare) as program,
        pytest.raises(WorkloadError, match="libnonesuch"),
    ):
        program.finish()


def test_ranks_train_in_step(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "steps"
    with Program.module("ddp", "--world", 2, "--steps", 10, "--out", log, environment=environment) as program:
        program.finish()
    first, second = (steps.read(tmp_path / f"steps.{rank}") for rank in (0, 1))
    assert [s.step for s in first] == [s.step for s in second] == list(range(10))


def test_ranks_end_with_their_launcher_even_when_it_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ("--world", 2, "--seconds", 60, "--out", tmp_path / "steps")
    # who is killed leaves its scratch folder behind
    with Program.module("ddp", *arguments, environment={**environment, "TMPDIR": str(tmp_path)}) as program:
        ranks = [int(pid) for pid in program.wait_for("ready")[1:]]
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        while [pid for pid in ranks if is_running(pid)]:
            time.sleep(0.01)  # the test's time limit is the bound


def test_ranks_end_when_their_launcher_is_asked_to(environment: dict[str, str], tmp_path: Path) -> None:
    arguments = ("--world", 2, "--seconds", 60, "--out", tmp_path / "steps")
    with Program.module("ddp", *arguments, environment=environment) as program:
        ranks = [int(pid) for pid in program.wait_for("ready")[1:]]
        assert program.stop() == 0
    assert not [pid for pid in ranks if is_running(pid)]
