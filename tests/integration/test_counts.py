"""Every call is counted exactly once, whatever the runtime version and however the driver hands out its functions."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from ingero.demo.gpusim.build import build, environment
from ingero.demo.gpusim.truth import Truth, read_all
from ingero.demo.workloads.program import Program
from ingero.ops import OPS
from ingero.store.reader import open_reader
from tests.integration.emulation import IS_EMULATED
from tests.integration.targets import rows
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

SECONDS = 2
# What a trap costs when caches are cold exceeds the calibrated part by some 50 ns, and now and then a thread loses the
# CPU inside it; the simulator's clock sees neither. More than the whole cost of a probe, as the agent has measured it
# here, would be a wrong account.
MOST_LEFT_OUT_NS = 100
CALLS_PER_SECOND = 60_000


def record_torture(tmp_path: Path, *, runtime: str, gpa: str, seconds: float, rate: int) -> tuple[Truth, Path]:
    truth = tmp_path / "truth.%p"
    gate = tmp_path / "go"
    lib = build()
    variables = environment(
        lib,
        ctl=tmp_path / "knobs",
        trace=truth,
        sched="block",
        runtime=runtime,
        gpa=gpa,  # type: ignore[arg-type]  # parametrized texts
    )
    arguments = ["--threads", "4", "--processes", "2", "--seconds", seconds, "--rate", rate, "--gate", gate]
    with Program.module("calls", *arguments, environment={**os.environ, **variables}) as program:
        pid = int(program.wait_for("loaded")[0])
        # the agent asks libcuda for its entry points; the simulated one takes its mode from the environment
        with tracing(tmp_path, pids=[pid], environment={"GPUSIM_GPA": gpa}) as tracer:
            gate.touch()
            program.finish()
            tracer.wait_for("second")
        return read_all(truth), tracer.database


def recorded_counts(database: Path) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Outermost calls, nested calls and summed durations by operation."""
    outer: Counter[str] = Counter()
    nested: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    with open_reader(database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        for total in reader.op_totals(window):
            outer[total.name] += total.count
            nested[total.name] += total.nested or 0
            spent[total.name] += total.sum_ns
    return outer, nested, spent


def whole_probe_ns(database: Path) -> float:
    """What one probed call costs here, measured when the recording began."""
    ((full_ns,),) = rows(database, "SELECT full_ns FROM raw_overhead_levels WHERE reason = 'start'")
    return float(full_ns)


def true_counts(truth: Truth) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """The same from the simulator, which counts by exported symbol."""
    name_of = {symbol: op.name for op in OPS for symbol in op.symbols}
    outer: Counter[str] = Counter()
    nested: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for (_, symbol), calls in truth.calls.items():
        if symbol in name_of:
            outer[name_of[symbol]] += calls.outer
            nested[name_of[symbol]] += calls.nested
            spent[name_of[symbol]] += calls.outer_ns
    return outer, nested, spent


@pytest.mark.parametrize(
    ("gpa", "runtime"),
    [
        ("exported", "12"),
        ("internal", "13"),
        pytest.param("exported", "13", marks=pytest.mark.further),
        pytest.param("internal", "12", marks=pytest.mark.further),
    ],
)
def test_counts_equal_the_simulators_own(tmp_path: Path, runtime: str, gpa: str) -> None:
    truth, database = record_torture(tmp_path, runtime=runtime, gpa=gpa, seconds=SECONDS, rate=CALLS_PER_SECOND)
    outer, nested, spent = recorded_counts(database)
    true_outer, true_nested, true_spent = true_counts(truth)
    total = sum(true_outer.values())
    ratio = sum(spent.values()) / max(1, sum(true_spent.values()))
    more_ns = (sum(spent.values()) - sum(true_spent.values())) / total
    print(
        f"\nlibcudart {runtime}, {gpa}: {total} outermost and {sum(true_nested.values())} nested calls of "
        f"{len(+true_outer)} operations ({total / SECONDS:.0f}/s); durations {ratio:.4f} of the simulator's, "
        f"{more_ns:.0f} ns more per call"
    )
    assert +outer == +true_outer
    assert +nested == +true_nested
    assert IS_EMULATED or -MOST_LEFT_OUT_NS <= more_ns <= whole_probe_ns(database)
