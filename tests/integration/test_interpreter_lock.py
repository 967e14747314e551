"""A sleep at the lock of its interpreter is known by its place, however short; a sleep at another lock is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.interpreters import interpreters
from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

_SECONDS = 3
_PROGRAM = f"""
import sys, threading, time
sys.stdin.readline()
end = time.monotonic() + {_SECONDS}
lock = threading.Lock()

def compute():
    while time.monotonic() < end:
        sum(range(1000))

def hold():
    while time.monotonic() < end:
        with lock:
            time.sleep(0.003)
        time.sleep(0.001)

threading.Thread(target=compute if sys.argv[1] == "computes" else hold, daemon=True).start()
while time.monotonic() < end:
    if sys.argv[1] == "computes":
        time.sleep(0.002)  # no lock, but waking up needs the interpreter's
    else:
        with lock:
            pass
        time.sleep(0.001)
"""


@pytest.mark.parametrize("name", interpreters())
def test_waits_for_the_interpreter_are_marked_and_those_for_another_lock_are_not(tmp_path: Path, name: str) -> None:
    commands = [[interpreters()[name], "-c", _PROGRAM, what] for what in ("computes", "holds")]
    with (
        subprocess.Popen(commands[0], stdin=subprocess.PIPE) as computing,
        subprocess.Popen(commands[1], stdin=subprocess.PIPE) as holding,
        tracing(tmp_path, pids=[computing.pid, holding.pid]) as tracer,
    ):
        tracer.wait_for("second")  # the interpreters have been read
        for program in (computing, holding):
            assert program.stdin
            program.stdin.write(b"\n")
            program.stdin.close()
        wait_for_end(tracer)
    query = (
        "SELECT is_interpreter_lock, count(*), min(futex & 1 = 0) FROM offcpu "
        "WHERE pid = ? AND tid = pid AND futex > 0 AND duration_ns > 1000000 GROUP BY 1"
    )
    computed, held = (
        {row[0]: row[1:] for row in rows(tracer.database, query, one)} for one in (computing.pid, holding.pid)
    )
    print(f"\n{name}: waits by whether they are marked, while another thread computed {computed}, held a lock {held}")
    assert computed[1][0] > 50
    assert computed.get(0, (0, 1))[0] <= 1, "Thread.start() waits for the thread, which is no wait for the interpreter"
    assert held[0][0] > 100
    assert held.get(1, (0, 1))[0] <= 0.05 * held[0][0], "who holds the interpreter may lose the CPU"
    assert {is_address for _, is_address in (*computed.values(), *held.values())} == {1}
