"""A step whose marker is a launch goes on when launches are traced at the driver alone, and at both layers again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ingero.capture.budget.levels import Level, Levels
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads import steps
from ingero.demo.workloads.program import Program
from tests.integration.targets import rows
from tests.integration.test_overhead_limiter import governed, run_script

pytestmark = pytest.mark.integration

WITHOUT_COPIES = frozenset({Level.COPIES_OFF})  # so that a launch is all that comes once a step
AT_DRIVER = WITHOUT_COPIES | {Level.LAUNCHES_AT_DRIVER}
COUNTED = AT_DRIVER | {Level.LAUNCHES_COUNTED}
LEARNED_SECONDS, PHASE_SECONDS = 5, 2
CLOCK_ERROR_NS = 1_000


@pytest.mark.parametrize(
    ("first", "others", "marker"),
    [
        (WITHOUT_COPIES, (AT_DRIVER, COUNTED, WITHOUT_COPIES), "cudaLaunchKernel"),
        (AT_DRIVER, (WITHOUT_COPIES, AT_DRIVER), "cuLaunchKernel"),
    ],
)
def test_steps_marked_by_a_launch_go_on_at_the_other_layers_call(
    tmp_path: Path, first: Levels, others: Sequence[Levels], marker: str
) -> None:
    gate, log = tmp_path / "go", tmp_path / "steps.jsonl"
    variables = environment(build(), ctl=tmp_path / "knobs", trace=tmp_path / "truth.%p", sched="block")
    options = ["--gate", gate, "--seconds", 120, "--out", log, "--sync-every", 1000]
    changes: list[int] = []
    with (
        Program.module("train", *options, environment={**os.environ, **variables}) as program,
        governed(tmp_path, int(program.wait_for("loaded")[0])) as recording,
    ):

        def script() -> Iterator[None]:
            recording.recorder.overhead_limiter.apply(first, "the test")
            gate.touch()
            yield from [None] * LEARNED_SECONDS
            for wanted in others:
                changes.append(time.monotonic_ns())
                recording.recorder.overhead_limiter.apply(wanted, "the test")
                yield from [None] * PHASE_SECONDS
            program.stop()

        run_script(recording, script())
    ((to_mono_ns,),) = rows(recording.database, "SELECT mono_ns - unix_ns FROM raw_clock_pairs LIMIT 1")
    found = np.array(rows(recording.database, "SELECT start_ns, end_ns FROM steps ORDER BY start_ns")) + to_mono_ns
    markers = rows(recording.database, "SELECT marker_op, step_type, count(*) FROM steps GROUP BY 1, 2 ORDER BY 3 DESC")
    print(f"\n{markers}")
    ends = np.array([one.t_ns for one in steps.read(log)])
    before = found[found[:, 1] < changes[0]]
    assert len(before) > 20
    assert {op for op, _, _ in markers} == {marker}
    assert len({step_type for _, step_type, _ in markers if "launches not traced" not in step_type}) == 1
    assert (np.abs(found[1:, 0] - found[:-1, 1]) < CLOCK_ERROR_NS).all(), "without a gap"
    inside = np.searchsorted(ends, found[:, 1]) - np.searchsorted(ends, found[:, 0])
    assert (inside == 1).all()
    assert found[-1, 1] > ends[-3]
