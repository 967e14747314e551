"""The native targets, untraced: what they promise about themselves must hold before a tracer is judged by them."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from ingero.demo.gpusim import build, truth
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, **build.environment(build.build(), sched="block", ctl=tmp_path / "ctl")}


def run(name: str, environment: dict[str, str], *arguments: object) -> list[dict[str, object]]:
    with Program([str(native.build(name)), *map(str, arguments)], environment=environment) as program:
        return [json.loads(line) for line in program.finish().splitlines()]


def test_the_torture_reports_every_process_by_its_pid(environment: dict[str, str]) -> None:
    processes = run("calls", environment, "--threads", 2, "--processes", 3, "--seconds", 0.2)
    assert len({p["pid"] for p in processes}) == 3


@pytest.mark.parametrize(
    "call",
    [
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch", "cudaMalloc", "cudaFree", "cudaMallocAsync",
        "cudaMemcpy", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize",
        "cudaEventSynchronize", "cudaEventRecord", "cudaStreamWaitEvent", "cudaSetDevice", "cudaStreamEndCapture",
        "cudaGraphInstantiate", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemAlloc_v2", "cuMemFree_v2",
        "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventRecord", "cuStreamWaitEvent",
        "cuCtxSetCurrent", "cuModuleLoadData", "ncclCommInitRank", "ncclAllReduce",
    ],
)  # fmt: skip
def test_the_torture_calls_every_family_with_success(torture: tuple[dict[str, int], dict[str, int]], call: str) -> None:
    calls, failed = torture
    assert calls[call] > failed.get(call, 0)


def test_the_torture_also_fails_calls_and_jumps(torture: tuple[dict[str, int], dict[str, int]]) -> None:
    _, failed = torture
    assert failed["cudaMalloc"] > 0
    assert failed["cuMemAlloc_v2"] > 0


@pytest.mark.parametrize("gpa", ["exported", "internal"])
def test_the_torture_counts_what_the_libraries_count(
    environment: dict[str, str], tmp_path: Path, gpa: Literal["exported", "internal"]
) -> None:
    environment |= build.environment(build.build(), trace=tmp_path / "truth", gpa=gpa)
    counted: Counter[str] = Counter()
    for process in run("calls", environment, "--threads", 4, "--processes", 2, "--seconds", 0.3, "--rate", 20_000):
        calls = process["calls"]
        assert isinstance(calls, dict)
        counted.update(calls)
    libraries = truth.read(tmp_path / "truth")
    assert counted == {name: libraries.count(name) for name in counted}


def test_the_torture_keeps_to_its_rate(environment: dict[str, str]) -> None:
    (process,) = run("calls", environment, "--threads", 2, "--seconds", 0.5, "--rate", 2000)
    calls = process["calls"]
    assert isinstance(calls, dict)
    assert sum(calls.values()) < 2000  # half a second at that rate, and a first round of set-up


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], dict[str, int]]:
    """Calls and failed calls of one short run."""
    libraries = build.environment(build.build(), sched="block", ctl=tmp_path_factory.mktemp("torture") / "ctl")
    (process,) = run("calls", {**os.environ, **libraries}, "--threads", 2, "--seconds", 0.3)
    calls, failed = process["calls"], process["failed"]
    assert isinstance(calls, dict)
    assert isinstance(failed, dict)
    assert isinstance(process["longjmps"], int)
    assert process["longjmps"] > 0
    return calls, failed


def test_exceptions_and_jumps_arrive(environment: dict[str, str]) -> None:
    (counts,) = run("unwinding", environment, 100)
    assert counts["caught"] == counts["longjmps"] == 100


def test_a_jump_out_of_a_call_and_a_cancelled_call_arrive(environment: dict[str, str]) -> None:
    (counts,) = run("unwinding", environment, 5, "escape", "cancel")
    assert counts["escaped"] == counts["cancelled"] == 5


@pytest.mark.parametrize("sched", ["spin", "yield", "block"])
def test_the_sandbox_allows_what_the_workload_needs(environment: dict[str, str], sched: str) -> None:
    (counts,) = run("sandboxed", {**environment, "GPUSIM_SCHED": sched}, 0.1)
    assert isinstance(counts["steps"], int)
    assert counts["steps"] > 0


def test_children_of_a_process_in_mid_call_live(environment: dict[str, str]) -> None:
    assert run("forker", environment, 8) == [{"children": 8, "calls_after_exec": 20}]
