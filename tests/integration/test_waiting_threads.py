"""Calls of a thread without Python frames end in the line of the thread that sleeps until it is done."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.ops import Source
from ingero.serve.text.breakdown import breakdown_text
from ingero.store.call_stacks import StackBook
from ingero.store.reader import open_reader
from ingero.store.waiters import Waiters
from tests.integration.targets import rows, simulation
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

_ENGINE = Path(__file__).parent / "stacks" / "engine.c"
_PASSES, _CALLS = 3, 30
_SHORT_PASSES, _SHORT_CALLS = 60, 4
_PROGRAM = """
import ctypes, sys
cudart, engine = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
passes, calls, pause_us = map(int, sys.argv[3:])
def backward():
    engine.engine_run(calls)
engine.engine_start(cudart.cudaMemsetAsync, pause_us)
sys.stdin.readline()
for _ in range(passes):
    backward()
print("done", flush=True)
sys.stdin.readline()
"""
_BACKWARD = 6  # the line of the program


@dataclass(frozen=True)
class _Recorded:
    database: Path
    pid: int


def _recorded(tmp_path: Path, *, passes: int, calls: int, pause_us: int) -> _Recorded:
    simulated = simulation(tmp_path)
    program, engine = tmp_path / "program.py", tmp_path / "engine.so"
    program.write_text(_PROGRAM)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", engine, _ENGINE], check=True)
    libraries = simulated.libraries / "libcudart.so.12", engine
    command = [sys.executable, program, *libraries, *map(str, (passes, calls, pause_us))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **simulated.environment}
    ) as process:
        assert process.stdin
        assert process.stdout
        with tracing(tmp_path, pids=[process.pid], options=["--record-all"]) as tracer:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        process.kill()
    found = rows(tracer.database, "SELECT count(*) FROM events WHERE op_name = 'cudaMemsetAsync'")[0][0]
    assert found == passes * calls
    return _Recorded(tracer.database, process.pid)


def test_the_line_that_waits_for_a_native_thread_is_shown_with_its_calls(tmp_path: Path) -> None:
    recorded = _recorded(tmp_path, passes=_PASSES, calls=_CALLS, pause_us=30_000)
    with open_reader(recorded.database) as reader:
        window = reader.window(None, 0)
        assert window
        lines = list(breakdown_text(reader, window))
    mark = f"[Python, of the thread that waits: {recorded.pid}/{recorded.pid}]"
    (shown,) = [line for line in lines if "cudaMemsetAsync" in line and "that waits" in line and "recorded)" in line]
    print(shown)
    assert f"at program.py:{_BACKWARD} in backward {mark} (" in shown


def test_waits_that_are_far_shorter_than_the_time_between_two_looks_have_their_line_too(tmp_path: Path) -> None:
    """The first call of a pass may come before its caller sleeps."""
    recorded = _recorded(tmp_path, passes=_SHORT_PASSES, calls=_SHORT_CALLS, pause_us=1000)
    with open_reader(recorded.database) as reader:
        window = reader.window(None, 0)
        assert window
        (process,) = [one.process for one in reader.processes() if one.is_traced]
        book = StackBook(reader)
        times = reader.stack_times(window, process=process, sources=(Source.CUDA,))
        placed, _ = Waiters(reader, window, process=process).placed(times, book)
        own = [
            (stack.own, one.time.count) for one in placed if one.waiter and (stack := book.of(one.waiter.stack_hash))
        ]
    assert {place.line for place, _ in own if place} == {_BACKWARD}
    assert sum(count for _, count in own) >= _SHORT_PASSES * (_SHORT_CALLS - 1) * 0.9
