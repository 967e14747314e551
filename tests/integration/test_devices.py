"""Which device a recorded call was on: what the thread chose, and nothing where that cannot be known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ingero.demo.workloads.program import Program
from tests.integration.targets import Recorded, record, rows, simulation, until, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("device_choices.py")
SIZE = 4096
ALLOCATIONS = ("cudaMalloc", "cuMemAlloc")
# scenario -> the GPU of its allocations, in the order of their size
EXPECTED: dict[str, list[int | None]] = {
    "nothing": [0],
    "set_device": [2],
    "failed_set_device": [2],
    "set_current": [3],
    "context_of_the_runtime": [2],
    "created": [1, 3, 4, 3],
    "pushed": [3, 1],
    "not_seen_made": [None],
    "no_context": [None],
}


def devices(database: Path, tid: int) -> list[int | None]:
    """The devices of a thread's allocations."""
    found = rows(
        database,
        "SELECT gpu_id FROM cuda_events WHERE tid = ? AND op IN (?, ?) ORDER BY bytes, timestamp",
        tid,
        *ALLOCATIONS,
    )
    return [device for (device,) in found]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    simulated = simulation(tmp_path_factory.mktemp("devices"), devices=6)
    return record(simulated, [sys.executable, PROGRAM], options=["--record-all"])


@pytest.mark.parametrize("scenario", EXPECTED)
def test_a_call_is_on_the_device_that_its_thread_chose(recorded: Recorded, scenario: str) -> None:
    tids = json.loads(recorded.output)
    assert devices(recorded.database, tids[scenario]) == EXPECTED[scenario]


def test_no_call_was_lost_on_the_way(recorded: Recorded) -> None:
    of_calls = recorded.drops.keys() - {"block_io_unmatched"}  # of anybody on the machine
    assert {name for name in of_calls if "unmatched" in name or "stale" in name} == set()


def test_what_was_chosen_before_tracing_is_not_known_but_new_threads_are(tmp_path: Path) -> None:
    simulated = simulation(tmp_path, devices=6)
    gate = tmp_path / "begin"
    with Program([sys.executable, str(PROGRAM), str(gate)], environment=simulated.environment) as program:
        program.wait_for("ready")
        with tracing(tmp_path, pids=[program.pid], options=["--record-all"]) as tracer:
            gate.touch()
            tids = json.loads(program.finish())
            wait_for_end(tracer)
    assert devices(tracer.database, tids["chosen before"]) == [None]
    assert devices(tracer.database, tids["nothing"]) == [0]


def test_the_only_gpu_of_a_machine_needs_no_choice(tmp_path: Path) -> None:
    simulated = simulation(tmp_path, devices=1)
    gate = tmp_path / "begin"
    command = [sys.executable, "-c", ONE_DEVICE, str(gate)]
    with Program(command, environment=simulated.environment) as program:
        program.wait_for("ready")
        environment = {"LD_LIBRARY_PATH": str(simulated.libraries)} | simulated_variables(simulated.environment)
        with tracing(tmp_path, pids=[program.pid], options=["--record-all"], environment=environment) as tracer:
            until(lambda: rows(tracer.database, "SELECT count(*) FROM gpus") == [(1,)], "the GPU is stored")
            gate.touch()
            program.finish()
            wait_for_end(tracer)
    found = rows(tracer.database, "SELECT DISTINCT gpu_id, gpu_uuid IS NULL FROM cuda_events WHERE op = 'cudaMalloc'")
    assert found == [(0, 0)]


ONE_DEVICE = """
import ctypes, os, sys, time
runtime = ctypes.CDLL("libcudart.so.12")
assert runtime.cudaSetDevice(0) == 0
print("ready", file=sys.stderr, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.005)
assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4096)) == 0
"""


def simulated_variables(environment: dict[str, str]) -> dict[str, str]:
    """What the simulated NVML needs of a simulation's environment."""
    return {name: value for name, value in environment.items() if name.startswith("GPUSIM_") and "TRACE" not in name}
