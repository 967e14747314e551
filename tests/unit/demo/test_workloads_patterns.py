"""How the trainer's patterns wait for the GPU, and that their log tells when each step truly began."""

import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.gpusim import build, truth
from ingero.demo.workloads import infer, steps
from ingero.demo.workloads.patterns import PATTERNS
from ingero.demo.workloads.program import Program

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU")

STEPS = 40


@dataclass(frozen=True)
class Run:
    """What the libraries saw of a run, and what the program says of itself."""

    seen: truth.Truth
    marks: list[tuple[int, str]]

    def waits(self) -> dict[str, int]:
        """How often each function waited for the GPU."""
        names = [self.seen.function_names[number] for number in self.seen.syncs["function"]]
        return {name: names.count(name) for name in names}


Runner = Callable[..., Run]
SMALL = ("--layers", 2, "--us", 10, "--cpu-ms", 0.1, "--steps", STEPS)  # a third of a millisecond of GPU work a step


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Return a function that runs a program with a pattern."""

    def start(program: str, pattern: str, *arguments: object) -> Run:
        folder = tmp_path / pattern
        folder.mkdir()
        made = build.environment(build.build(), sched="block", ctl=folder / "ctl", trace=folder / "truth")
        command = (program, "--out", folder / "log", "--pattern", pattern, *SMALL, *arguments)
        with Program.module(*command, environment={**os.environ, **made}) as child:
            child.finish()
        return Run(seen=truth.read(folder / "truth"), marks=steps.marks(folder / "log"))

    return start


@pytest.fixture
def train(run: Runner) -> Runner:
    """Return a function that runs the trainer with a pattern."""
    return functools.partial(run, "train")


def test_without_any_wait_the_loop_is_never_synchronized(train: Runner) -> None:
    made = train("no-sync")
    assert made.waits() == {}
    assert len(made.marks) == STEPS


def test_the_copy_of_the_batch_is_the_only_wait_of_a_step(train: Runner) -> None:
    assert train("batch-copy").waits() == {"cudaMemcpyAsync": STEPS}


def test_a_look_at_the_drop_in_mid_step_ends_no_step(train: Runner) -> None:
    made = train("item-mid")
    assert made.waits() == {"cudaStreamSynchronize": STEPS}
    forward, whole = made.seen.interval_ends["enqueues"][0], made.seen.interval_ends["enqueues"][1:]
    assert (whole > forward).all()  # from the middle of a step to the middle of the next


def test_the_copy_stream_is_synchronized_and_the_stream_that_computes_is_not(train: Runner) -> None:
    made = train("copy-stream")
    assert made.waits() == {"cudaStreamSynchronize": STEPS}
    assert set(made.seen.interval_ends["enqueues"].tolist()) == {1}  # the copy
    assert made.seen.count("cudaEventQuery") >= STEPS - 1  # of the allocator, about batches that the GPU may still read


def test_a_pipeline_waits_for_the_step_before(train: Runner) -> None:
    made = train("event-pipeline")
    assert made.waits() == {"cudaEventSynchronize": STEPS - 1}


def test_accumulated_steps_are_one_step(train: Runner) -> None:
    made = train("accumulate")
    assert made.waits() == {"cudaStreamSynchronize": STEPS // 4}
    assert [kind for _, kind in made.marks] == [steps.TRAIN, *(steps.MICRO,) * 3] * (STEPS // 4)


def test_the_batches_of_an_evaluation_have_marks_of_their_own(train: Runner) -> None:
    marks = train("eval", "--eval-every", 20, "--eval-batches", 5).marks
    assert [kind for _, kind in marks].count(steps.EVAL) == 2 * 5
    assert [start for start, _ in marks] == sorted(start for start, _ in marks)


def test_steps_of_several_shapes_launch_other_kernels(train: Runner) -> None:
    made = train("shapes")
    kinds = [kind for _, kind in made.marks]
    assert len(set(kinds)) == 3
    products = {name: count for name, count in made.seen.launches.items() if "sgemm" in name}
    for tile, kind in (("128x64", "shape 0"), ("64x64", "shape 1"), ("128x128", "shape 2")):
        mine = sum(count for name, count in products.items() if f"_{tile}_" in name)
        assert mine == 2 * 9 * kinds.count(kind)  # products of two layers, forward and backward


def test_the_tests_know_every_pattern() -> None:
    assert set(PATTERNS) == {
        "no-sync", "batch-copy", "item-mid", "copy-stream", "event-pipeline", "accumulate", "eval", "shapes",
    }  # fmt: skip


def test_requests_wait_in_copies_of_ordinary_memory_and_have_no_period(run: Runner) -> None:
    made = run("infer", "requests")
    assert made.waits() == {"cudaMemcpyAsync": STEPS}  # of the results; a MiB of input is taken along
    assert len(set(made.seen.interval_ends["enqueues"].tolist())) > 2
    assert {kind for _, kind in made.marks} == {infer.REQUEST}


def test_a_token_is_one_graph_and_is_waited_for_after_the_next(run: Runner) -> None:
    made = run("infer", "tokens", "--steps", 200)
    kinds = [kind for _, kind in made.marks]
    assert made.seen.count("cudaGraphLaunch") == kinds.count(infer.TOKEN) == 200 - kinds.count(infer.PREFILL)
    assert made.waits() == {"cudaEventSynchronize": kinds.count(infer.TOKEN) - 1}


def test_a_watchdog_asks_for_the_events_of_collectives(tmp_path: Path) -> None:
    made = build.environment(build.build(), sched="block", ctl=tmp_path / "ctl", trace=tmp_path / "truth-%p")
    # By steps, because a rank that has ended while the other begins one more would let it wait for ever.
    command = ("ddp", "--watchdog", "--layers", 2, "--steps", 150, "--out", tmp_path / "log")
    with Program.module(*command, environment={**os.environ, **made}) as program:
        program.finish()
    seen = truth.read_all(tmp_path / "truth-%p")
    assert seen.count("cudaEventRecord") == seen.count("ncclAllReduce")
    assert seen.count("cudaEventQuery") > 0
