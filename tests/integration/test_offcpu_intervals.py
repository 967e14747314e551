"""Off-CPU intervals are kept, or counted where the agent comes too late to read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.targets import rows, simulation
from tests.integration.tracing import tracing

_SLEEPS = 500  # far more than a thread's buffer holds; each is long enough to be kept

# It sleeps again and again, and makes no call that would empty its buffer.
_SLEEPER = f"""
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range({_SLEEPS}):
    time.sleep(0.001)
print("slept", flush=True)
sys.stdin.readline()
"""


def test_what_a_thread_sleeps_while_the_agent_cannot_run_is_kept_or_counted(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    command = [sys.executable, "-c", _SLEEPER, simulated.libraries / "libcudart.so.12"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=simulated.environment
    ) as sleeper:
        assert sleeper.stdin
        assert sleeper.stdout
        sleeper.stdout.readline()
        with tracing(tmp_path, pids=[sleeper.pid]) as tracer:
            tracer.wait_for("second")
            os.kill(tracer.process.pid, signal.SIGSTOP)
            sleeper.stdin.write("\n")
            sleeper.stdin.flush()
            sleeper.stdout.readline()
            os.kill(tracer.process.pid, signal.SIGCONT)
            tracer.wait_for("second")
            tracer.stop()
        sleeper.stdin.close()
    ((kept,),) = rows(
        tracer.database, "SELECT count(*) FROM raw_offcpu WHERE tid = ? AND duration_ns < 500000000", sleeper.pid
    )
    lost = tracer.messages[-1]["losses"].get("offcpu_buffer_full", 0)
    assert lost > 0  # no program on the scheduler's path writes to a ring, so a buffer that nobody reads overflows
    assert kept + lost >= _SLEEPS
