"""Calls of a thread without Python frames end in the line of the thread that sleeps until it is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.serve.account import account_text
from ingero.store.reader import open_reader
from tests.integration.targets import rows, simulation
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

_ENGINE = Path(__file__).parent / "stacks" / "engine.c"
_PASSES, _CALLS = 3, 30
_PROGRAM = f"""
import ctypes, sys
cudart, engine = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
def backward():
    engine.engine_run({_CALLS})
engine.engine_start(cudart.cudaMemsetAsync)
sys.stdin.readline()
for _ in range({_PASSES}):
    backward()
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_line_that_waits_for_a_native_thread_is_shown_with_its_calls(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    program, engine = tmp_path / "program.py", tmp_path / "engine.so"
    program.write_text(_PROGRAM)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", engine, _ENGINE], check=True)
    command = [sys.executable, program, simulated.libraries / "libcudart.so.12", engine]
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
    calls = rows(tracer.database, "SELECT count(*) FROM events WHERE op_name = 'cudaMemsetAsync'")[0][0]
    assert calls == _PASSES * _CALLS
    with open_reader(tracer.database) as reader:
        window = reader.window(None, 0)
        assert window
        lines = list(account_text(reader, window))
    mark = f"[Python, of the thread that waits: {process.pid}/{process.pid}]"
    (shown,) = [line for line in lines if "cudaMemsetAsync" in line and "that waits" in line and "recorded)" in line]
    print(shown)
    assert f"at program.py:5 in backward {mark} (" in shown
