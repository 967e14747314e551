"""Launches have the names of their kernels: counts per name equal what the simulated driver saw."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.decode.native.names import demangle
from ingero.demo.gpusim import build
from ingero.demo.gpusim.truth import Truth
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program
from tests.integration.targets import Recorded, Simulation, record, rows, simulation, wait_for_end
from tests.integration.tracing import tracing

SOURCE = Path(__file__).parent / "program.c"
COUNTS = (700, 40, 3, 25, 11)
RELU = "void at::native::vectorized_elementwise_kernel<4, float>(float, int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(float*, int)"
RUN = "cutlass::Kernel::run(int)"
NAMES = (RELU, NORM, RUN, "gemm(int)", "conv(float)")

COUNTED = "SELECT kernel_name, sum(count) FROM kernel_launches GROUP BY 1"


def program(folder: Path, *more: object, strip: bool = False) -> Path:
    """The compiled program, on a file of its own."""
    path = folder / "program"
    command = ["gcc", "-O1", "-fpatchable-function-entry=1", f"-I{native.SOURCES}", "-o", path, SOURCE, *more]
    subprocess.run([*map(str, command), "-ldl", "-lpthread"], check=True)
    if strip:
        subprocess.run(["strip", "--strip-all", path], check=True)
    return path


def readable(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    """By readable name, without the duration that the simulated GPU takes from it."""
    summed: Counter[str] = Counter()
    for name, count in counts:
        summed[demangle(name.partition("#")[0])] += count
    return summed


def launches(truth: Truth) -> Counter[str]:
    """What the simulated driver launched."""
    return readable(truth.launches.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Every launch of the program recorded."""
    folder = tmp_path_factory.mktemp("whole")
    return record(simulation(folder), [program(folder), *COUNTS], options=["--record-all"])


def test_counts_per_kernel_are_those_of_the_device(whole: Recorded) -> None:
    assert whole.output.strip() == "used again", "the second kernel has the handle of the first"
    assert launches(whole.truth) == dict(zip(NAMES, COUNTS, strict=True))
    assert dict(rows(whole.database, COUNTED)) == launches(whole.truth)
    sources = dict(rows(whole.database, "SELECT short_name, source_of_name FROM kernel_launches"))
    assert sources == {
        "at::native::vectorized_elementwise_kernel<...>": "symbol",
        "at::native::(anonymous namespace)::vectorized_layer_norm_kernel<...>": "symbol",
        "cutlass::Kernel::run": "symbol",
        "gemm": "handle asked for by name",
        "conv": "handle asked for by name",
    }
    assert not {name for name in whole.drops if name.startswith("kernel")}


def test_recorded_launches_have_the_name_of_the_kernel_that_the_handle_was_then(whole: Recorded) -> None:
    found = rows(whole.database, "SELECT kernel_name, count(*) FROM cuda_events WHERE function > 0 GROUP BY 1")
    assert dict(found) == dict(zip(NAMES, COUNTS, strict=True))


def test_a_stripped_program_has_the_names_that_it_registered(tmp_path: Path) -> None:
    recorded = record(simulation(tmp_path), [program(tmp_path, strip=True), *COUNTS])
    assert dict(rows(recorded.database, COUNTED)) == launches(recorded.truth)
    sources = rows(recorded.database, "SELECT DISTINCT source_of_name FROM kernel_launches ORDER BY 1")
    assert sources == [("handle asked for by name",), ("registration",)]


def test_launches_seen_at_the_driver_only_have_the_same_names(tmp_path: Path) -> None:
    recorded = record(simulation(tmp_path), [program(tmp_path), *COUNTS], options=["--launches-at", "driver"])
    assert dict(rows(recorded.database, COUNTED)) == launches(recorded.truth)


def test_the_runtime_inside_the_program_needs_no_symbols(tmp_path: Path) -> None:
    runtime = next(one for one in build.LIBRARIES if one.soname == "libcudart.so.12")
    objects = []
    for source in runtime.sources():
        objects.append(tmp_path / f"{source.stem}.static.o")
        subprocess.run([*build.compile_command(runtime), "-c", "-o", objects[-1], source], check=True)
    path = program(tmp_path, "-rdynamic", *objects, strip=True)
    simulated = simulation(tmp_path)
    alone = {**simulated.environment, "GPUSIM_RUNTIME": "libcuda.so.1"}
    recorded = record(replace(simulated, environment=alone), [path, *COUNTS])
    assert dict(zip(NAMES, COUNTS, strict=True)) == launches(recorded.truth)
    assert dict(rows(recorded.database, COUNTED)) == launches(recorded.truth)
    assert rows(recorded.database, "SELECT DISTINCT library FROM kernel_launches") == [("program",)]


def started_before(simulated: Simulation, path: Path, gate: Path) -> Program:
    """The program, which has made its first handle."""
    environment = {**simulated.environment, "GATE": str(gate)}
    running = Program([str(path), *map(str, COUNTS)], environment=environment)
    running.wait_for("made")
    return running


def test_a_handle_made_before_tracing_has_no_name_until_it_is_another(tmp_path: Path) -> None:
    simulated, gate = simulation(tmp_path), tmp_path / "gate"
    with started_before(simulated, program(tmp_path), gate) as running:
        with tracing(tmp_path, pids=[running.pid]) as tracer:
            gate.touch()
            assert running.finish().strip() == "used again"
            wait_for_end(tracer)
        found = dict(rows(tracer.database, COUNTED))
    assert found == {RELU: 700, NORM: 40, RUN: 3, None: 24, "conv(float)": 11}
    (reason,) = rows(tracer.database, "SELECT DISTINCT source_of_name FROM kernel_launches WHERE kernel_name IS NULL")
    assert "before tracing" in reason[0]


def test_every_launch_belongs_to_the_library_that_issued_it(tmp_path: Path) -> None:
    command = ["-m", "ingero.demo.workloads.train", "--steps", "200"]  # it lives long enough to be looked at
    simulated = simulation(tmp_path)
    recorded = record(simulated, [sys.executable, *command])
    short = rows(recorded.database, "SELECT coalesce(short_name, ''), sum(count) FROM kernel_launches GROUP BY 1")
    assert readable((name.rpartition("::")[2].removesuffix("<...>"), count) for name, count in short) == launches(
        recorded.truth
    )
    libraries = rows(recorded.database, "SELECT library, sum(count) FROM kernel_launches GROUP BY 1 ORDER BY 1")
    sums = """
        SELECT caller_library, sum(count) FROM op_stats WHERE op_name LIKE '%LaunchKernel' AND count
        GROUP BY 1 ORDER BY 1"""
    assert libraries == rows(recorded.database, sums)
    assert {name for name, _ in libraries} >= {"libminiaten.so", "libminiblas.so"}
