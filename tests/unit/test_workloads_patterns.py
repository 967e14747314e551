"""How the trainer's patterns wait for the device, and that their log tells when each step truly began."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.gpusim import build, truth
from ingero.demo.workloads import steps
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
        """How often each function waited for the device."""
        names = [self.seen.function_names[number] for number in self.seen.syncs["function"]]
        return {name: names.count(name) for name in names}


Train = Callable[..., Run]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that runs the trainer with a pattern, a third of a millisecond of GPU work a step."""

    def run(pattern: str, *arguments: object) -> Run:
        folder = tmp_path / pattern
        folder.mkdir()
        made = build.environment(build.build(), sched="block", ctl=folder / "ctl", trace=folder / "truth")
        small = ("--layers", 2, "--us", 10, "--cpu-ms", 0.1, "--steps", STEPS)
        command = ("train", "--out", folder / "log", "--pattern", pattern, *small, *arguments)
        with Program.module(*command, environment={**os.environ, **made}) as program:
            program.finish()
        return Run(seen=truth.read(folder / "truth"), marks=steps.marks(folder / "log"))

    return run


def test_without_any_wait_the_loop_is_never_synchronized(train: Train) -> None:
    run = train("no-sync")
    assert run.waits() == {}
    assert len(run.marks) == STEPS


def test_the_copy_of_the_batch_is_the_only_wait_of_a_step(train: Train) -> None:
    assert train("batch-copy").waits() == {"cudaMemcpyAsync": STEPS}


def test_a_look_at_the_loss_in_mid_step_ends_no_step(train: Train) -> None:
    run = train("item-mid")
    assert run.waits() == {"cudaStreamSynchronize": STEPS}
    forward, whole = run.seen.drains["enqueues"][0], run.seen.drains["enqueues"][1:]
    assert (whole > forward).all()  # from the middle of a step to the middle of the next


def test_the_copy_stream_is_synchronized_and_the_stream_that_computes_is_not(train: Train) -> None:
    run = train("copy-stream")
    assert run.waits() == {"cudaStreamSynchronize": STEPS}
    assert set(run.seen.drains["enqueues"].tolist()) == {1}  # the copy
    assert run.seen.count("cudaEventQuery") > STEPS  # of the allocator, about batches that the GPU may still read


def test_a_pipeline_waits_for_the_step_before(train: Train) -> None:
    run = train("event-pipeline")
    assert run.waits() == {"cudaEventSynchronize": STEPS - 1}


def test_accumulated_steps_are_one_step(train: Train) -> None:
    run = train("accumulate")
    assert run.waits() == {"cudaStreamSynchronize": STEPS // 4}
    assert len(run.marks) == STEPS // 4


def test_the_batches_of_an_evaluation_have_marks_of_their_own(train: Train) -> None:
    marks = train("eval", "--eval-every", 20, "--eval-batches", 5).marks
    assert [kind for _, kind in marks].count(steps.EVAL) == 2 * 5
    assert [start for start, _ in marks] == sorted(start for start, _ in marks)


def test_steps_of_several_shapes_launch_other_kernels(train: Train) -> None:
    run = train("shapes")
    kinds = [kind for _, kind in run.marks]
    assert len(set(kinds)) == 3
    products = {name: count for name, count in run.seen.launches.items() if "sgemm" in name}
    for tile, kind in (("128x64", "shape 0"), ("64x64", "shape 1"), ("128x128", "shape 2")):
        mine = sum(count for name, count in products.items() if f"_{tile}_" in name)
        assert mine == 2 * 9 * kinds.count(kind)  # products of two layers, forward and backward


def test_the_tests_know_every_pattern() -> None:
    assert set(PATTERNS) == {
        "no-sync", "batch-copy", "item-mid", "copy-stream", "event-pipeline", "accumulate", "eval", "shapes",
    }  # fmt: skip


def test_a_watchdog_asks_for_the_events_of_collectives_and_launches_nothing(tmp_path: Path) -> None:
    made = build.environment(build.build(), sched="block", ctl=tmp_path / "ctl", trace=tmp_path / "truth-%p")
    command = ("ddp", "--watchdog", "--layers", 2, "--us", 10, "--seconds", 0.6, "--out", tmp_path / "log")
    with Program.module(*command, environment={**os.environ, **made}) as program:
        program.finish()
    seen = truth.read_all(tmp_path / "truth-%p")
    assert seen.count("cudaEventRecord") == seen.count("ncclAllReduce")
    assert 0 < seen.count("cudaEventQuery") <= seen.count("cudaEventRecord") + 2 * 7  # and one in vain each time
