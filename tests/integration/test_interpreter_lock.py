"""A sleep at the lock of its interpreter is known by its place, however short; a sleep at another lock is none."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.interpreters import interpreters
from tests.integration.targets import rows, wait_for_end
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration

_ENOUGH = 50  # waits, not seconds: where others want the CPUs, each takes longer
_LONG = "pid = ? AND tid = pid AND futex > 0 AND duration_ns > 1000000"
# Beside its first thread one computes, so that waking up needs the interpreter's lock, until there is a line of input;
# then it holds a lock of its own until the next line. Says when.
_PROGRAM = """
import sys, threading, time
lock = threading.Lock()
is_told, is_over = [], []

def listen():
    is_told.append(sys.stdin.readline())
    is_over.append(sys.stdin.readline())

def beside():
    while not is_told:
        sum(range(1000))
    while not is_over:
        with lock:
            time.sleep(0.003)
        time.sleep(0.001)

sys.stdin.readline()
threading.Thread(target=listen, daemon=True).start()
threading.Thread(target=beside, daemon=True).start()
while not is_told:
    time.sleep(0.002)
print(time.time_ns(), flush=True)
while not is_over:
    with lock:
        pass
    time.sleep(0.001)
"""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """A recording, and of each interpreter the process and when its second thread held a lock instead of computing."""

    database: Path
    pids: dict[str, int]
    held_ns: dict[str, int]

    def places(self, name: str, condition: str) -> tuple[Counter[int], Counter[int]]:
        """How often the first thread slept at each address, by whether that is said to be the interpreter's lock."""
        query = f"SELECT is_interpreter_lock, futex FROM offcpu WHERE {_LONG} AND {condition}"
        found = rows(self.database, query, self.pids[name])
        marked, others = (Counter(place for is_marked, place in found if is_marked == one) for one in (1, 0))
        return marked, others


@contextmanager
def waiting(program: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, which begins at a line of input."""
    command = [program, "-c", _PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def hold_once_marked(process: subprocess.Popen[str], tracer: Tracer) -> int:
    """Lets it compute until its interpreter is known, and then hold the lock until its end; when that began."""
    assert process.stdin
    assert process.stdout
    print(file=process.stdin, flush=True)
    wait_for_enough(tracer, "is_interpreter_lock", process.pid)
    print(file=process.stdin, flush=True)
    began_ns = int(process.stdout.readline())
    wait_for_enough(tracer, f"NOT is_interpreter_lock AND timestamp > {began_ns}", process.pid)
    print(file=process.stdin, flush=True)
    process.wait()
    return began_ns


def wait_for_enough(tracer: Tracer, condition: str, pid: int) -> None:
    while rows(tracer.database, f"SELECT count(*) FROM offcpu WHERE {_LONG} AND {condition}", pid)[0][0] < _ENOUGH:
        tracer.wait_for("second")


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Waits:
    """All interpreters in one recording, one after the other."""
    with ExitStack() as stack:
        programs = {name: stack.enter_context(waiting(program)) for name, program in interpreters().items()}
        pids = {name: process.pid for name, process in programs.items()}
        tracer = stack.enter_context(tracing(tmp_path_factory.mktemp("waits"), pids=list(pids.values())))
        held_ns = {name: hold_once_marked(process, tracer) for name, process in programs.items()}
        wait_for_end(tracer)
    return Waits(database=tracer.database, pids=pids, held_ns=held_ns)


@pytest.mark.parametrize("name", interpreters())
def test_waits_for_the_interpreter_are_marked_and_those_for_another_lock_are_not(waits: Waits, name: str) -> None:
    known = f"SELECT min(timestamp) FROM offcpu WHERE {_LONG} AND is_interpreter_lock"
    ((known_ns,),) = rows(waits.database, known, waits.pids[name])
    computed = waits.places(name, f"timestamp BETWEEN {known_ns} AND {waits.held_ns[name]}")
    held = waits.places(name, f"timestamp > {waits.held_ns[name]}")
    print(
        f"\n{name}: waits (marked, others) while another thread computed {[one.total() for one in computed]}, "
        f"held a lock {[one.total() for one in held]}"
    )
    assert computed[0].total() >= _ENOUGH
    assert computed[1].total() <= 1, "Thread.start() waits for the thread, which is no wait for the interpreter"
    assert held[1].total() >= _ENOUGH
    assert not held[0].keys() & held[1].keys(), "who holds the interpreter may lose the CPU: that is another place"
    assert not [place for one in (*computed, *held) for place in one if place & 1]
