"""The real CUDA runtime libraries, as the wheels ship them, on a machine without a driver: all their calls are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.ops import OPS, Library
from tests.integration.targets import rows, wait_for_end
from tests.integration.test_discover_wheels import exported_functions, wheel
from tests.integration.tracing import tracing

__all__ = ["wheel"]  # a fixture: the unpacked wheel, each release in turn

INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: what the runtime answers to everything without a driver

# Loads the library named first, waits for a line, makes each call of the table, and prints what each returned.
CALLER = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
print("loaded", flush=True)
sys.stdin.readline()
pointer, host = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
dim3 = type("dim3", (ctypes.Structure,), {"_fields_": [(axis, ctypes.c_uint) for axis in "xyz"]})
one, size = dim3(1, 1, 1), ctypes.c_size_t
returned = []
def call(name, *arguments):
    returned.append((name, getattr(library, name)(*arguments)))
call("cudaMalloc", ctypes.byref(pointer), size(1 << 20))
call("cudaMalloc", ctypes.byref(pointer), size((1 << 33) + 8))
call("cudaMemcpy", host, host, size(4096), 1)
call("cudaMemcpyAsync", host, host, size(512), 2, ctypes.c_void_p(0x1234))
call("cudaMemset", host, 0, size(64))
call("cudaMallocHost", ctypes.byref(pointer), size(8192))
call("cudaStreamSynchronize", ctypes.c_void_p(0x5678))
call("cudaDeviceSynchronize")
call("cudaLaunchKernel", host, one, one, None, size(0), None)
call("cudaFree", None)
call("cudaGetDevice", ctypes.byref(ctypes.c_int()))
print(json.dumps(returned), flush=True)
"""

SIZES = [
    ("cudaMalloc", 1 << 20),
    ("cudaMalloc", (1 << 33) + 8),
    ("cudaMemcpy", 4096),
    ("cudaMemcpyAsync", 512),
    ("cudaMemset", 64),
    ("cudaMallocHost", 8192),
    ("cudaStreamSynchronize", 0),
    ("cudaDeviceSynchronize", 0),
    ("cudaLaunchKernel", 0),
    ("cudaFree", 0),
]


@contextmanager
def caller(library: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the library and makes its calls when told to."""
    variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-c", CALLER, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout
        assert process.stdout.readline() == "loaded\n"
        yield process
        process.kill()


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What the process says its calls returned, and what was recorded of it."""

    library: Path
    returned: list[tuple[str, int]]
    database: Path


@pytest.fixture(scope="module")
def recording(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Every call of the table, recorded."""
    (library,) = wheel.rglob("libcudart.so.*")
    folder = tmp_path_factory.mktemp("real")
    with caller(library) as process, tracing(folder, pids=[process.pid]) as tracer:
        answer, _ = process.communicate("go\n")
        wait_for_end(tracer)
    returned = [(name, code) for name, code in json.loads(answer)]
    return Recording(library=library, returned=returned, database=tracer.database)


def test_every_row_that_the_library_exports_is_attached(recording: Recording) -> None:
    probes = rows(recording.database, "SELECT symbol, is_attached, reason FROM raw_probes")
    exported = exported_functions(recording.library)
    expected = {symbol for op in OPS if op.library is Library.CUDART for symbol in op.symbols if symbol in exported}
    attached = {symbol for symbol, is_attached, _ in probes if is_attached}
    without = {symbol: reason for symbol, is_attached, reason in probes if not is_attached}
    print(f"\n{recording.library.name}: {len(attached)} symbols attached, {len(without)} operations it does not export")
    assert attached == expected
    assert all("does not export" in reason for reason in without.values())


def test_every_call_is_recorded_with_its_error(recording: Recording) -> None:
    recorded = rows(recording.database, "SELECT op_name, ret_code FROM events WHERE source = 1 ORDER BY timestamp")
    assert recorded == [(name, code) for name, code in recording.returned if name != "cudaGetDevice"]
    assert {code for _, code in recorded} == {INSUFFICIENT_DRIVER}
    assert rows(recording.database, "SELECT sum(errors) FROM raw_op_stats") == [(len(SIZES),)]


def test_every_call_is_recorded_with_its_size(recording: Recording) -> None:
    recorded = rows(recording.database, "SELECT op_name, arg0 FROM events WHERE source = 1 ORDER BY timestamp")
    assert recorded == SIZES
