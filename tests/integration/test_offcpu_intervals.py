"""Off-CPU intervals are kept, or counted where the agent comes too late to read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.diagnose.offcpu.gil_waits import gil_waits
from ingero.events import INTERPRETER_LOCK, RECEIVES, SENDS, THREAD_STATES, WAKER_KINDS
from ingero.store.reader import open_reader
from tests.integration.targets import rows, simulation
from tests.integration.tracing import Tracer, tracing

_FEW = 20
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


_TURNS = 200

# It writes more than fits into a pipe and a connection, until its child has made room; then it reads, until its child
# has written.
_WRITER = f"""
import ctypes, os, socket, sys, time
library = ctypes.CDLL(sys.argv[1])
full, empty = os.pipe(), os.pipe()
listening = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listening.getsockname())
far, _ = listening.accept()
near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
if not os.fork():
    for _ in range({_TURNS}):
        time.sleep(0.003)
        read = 0
        while read < 131072:
            read += len(os.read(full[0], 131072 - read))
        time.sleep(0.003)
        far.recv(1 << 20, socket.MSG_WAITALL)
        time.sleep(0.003)
        os.write(empty[1], b"x")
    os._exit(0)
print("ready", flush=True)
sys.stdin.readline()
for _ in range({_TURNS}):
    os.write(full[1], bytes(131072))
    near.sendall(bytes(1 << 20))
    os.read(empty[0], 1)
print("done", flush=True)
sys.stdin.readline()
"""


# It makes a thread and a process that sleep once, and tells who they are.
_MAKER = """
import ctypes, os, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=time.sleep, args=(0.01,))
thread.start()
child = os.fork()
if not child:
    time.sleep(0.01)
    os._exit(0)
thread.join()
os.waitpid(child, 0)
print(os.getpid(), thread.native_id, child, flush=True)
sys.stdin.readline()
"""


@contextmanager
def traced(tmp_path: Path, source: str) -> Iterator[tuple[subprocess.Popen[str], Tracer]]:
    """A program that waits for a line, under an agent; both end."""
    simulated = simulation(tmp_path)
    command = [sys.executable, "-c", source, simulated.libraries / "libcudart.so.12"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=simulated.environment
    ) as program:
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        with tracing(tmp_path, pids=[program.pid]) as tracer:
            tracer.wait_for("second")
            yield program, tracer
            tracer.wait_for("second")
            tracer.stop()
        program.stdin.close()


def run(program: subprocess.Popen[str]) -> None:
    """Lets it do what it does, to the end."""
    assert program.stdin
    assert program.stdout
    program.stdin.write("\n")
    program.stdin.flush()
    program.stdout.readline()


def test_the_first_interval_of_a_thread_and_of_a_process_says_who_made_them(tmp_path: Path) -> None:
    """However soon they ran: nobody waited for them before they were born."""
    with traced(tmp_path, _MAKER) as (program, tracer):
        assert program.stdin
        assert program.stdout
        print(file=program.stdin, flush=True)
        maker, *made = map(int, program.stdout.readline().split())
        tracer.wait_for("second")
        print(file=program.stdin, flush=True)
    for tid in made:
        sql = "SELECT state, woken_ns - start_ns, waker_kind, waker_pid, waker_tid FROM raw_offcpu WHERE tid = {}"
        born, *later = rows(tracer.database, sql.format(tid) + " ORDER BY start_ns")
        assert born == (THREAD_STATES.index("sleep"), 0, WAKER_KINDS.index("thread"), maker, maker)
        assert [row[0] for row in later if row[1] > 0] == [THREAD_STATES.index("sleep")]


def test_a_sleep_in_a_write_is_told_from_one_in_a_read(tmp_path: Path) -> None:
    with traced(tmp_path, _WRITER) as (writer, tracer):
        run(writer)
    long = (
        "SELECT is_own_request, count(*), count(futex) FROM offcpu WHERE tid = ? AND duration_ns > 1000000 GROUP BY 1"
    )
    found = {is_own: (count, futexes) for is_own, count, futexes in rows(tracer.database, long, writer.pid)}
    assert min(count for count, _ in found.values()) > _TURNS / 2, found
    assert found[1][1] == 0, "a system call is no futex"
    long = "FROM raw_offcpu WHERE tid = ? AND duration_ns > 1000000"
    assert {SENDS, RECEIVES} <= {call for (call,) in rows(tracer.database, f"SELECT futex {long}", writer.pid)}
    ended = f"SELECT avg(waker_kind = {WAKER_KINDS.index('thread')}) {long} AND futex = {SENDS}"
    ((by_thread,),) = rows(tracer.database, ended, writer.pid)
    assert by_thread > 0.9, "the reader made room in its own call, also where the network woke the writer meanwhile"


def test_what_a_thread_sleeps_while_the_agent_cannot_run_is_kept_or_counted(tmp_path: Path) -> None:
    with traced(tmp_path, _SLEEPER) as (sleeper, tracer):
        os.kill(tracer.process.pid, signal.SIGSTOP)
        run(sleeper)
        os.kill(tracer.process.pid, signal.SIGCONT)
    ((kept,),) = rows(
        tracer.database, "SELECT count(*) FROM raw_offcpu WHERE tid = ? AND duration_ns < 500000000", sleeper.pid
    )
    lost = tracer.messages[-1]["drops"].get("offcpu_buffer_full", 0)
    assert lost > 0  # no program on the scheduler's path writes to a ring, so a buffer that nobody reads overflows
    assert kept + lost >= _SLEEPS


# Two threads: one holds a lock of its own for a while and computes for longer than a switch interval, the other asks
# for that lock, and so for both. The futex of a semaphore is what CPython's locks are made of up to 3.12; from 3.13 on
# they sleep at a place on the sleeper's stack.
_WAITER = """
import ctypes, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
lock = threading.Lock()
def hold():
    while True:
        with lock:
            time.sleep(0.003)
        end = time.perf_counter() + 0.012
        while time.perf_counter() < end:
            pass
threading.Thread(target=hold, daemon=True).start()
print("ready", flush=True)
end = time.perf_counter() + 60
while time.perf_counter() < end:
    with lock:
        pass
    time.sleep(0.0005)
"""


@pytest.mark.parametrize("is_by_signature", [False, True])
def test_waits_for_the_interpreter_and_for_a_lock_are_at_places_of_their_own(
    tmp_path: Path, *, is_by_signature: bool
) -> None:
    simulated = simulation(tmp_path)
    command = [sys.executable, "-c", _WAITER, simulated.libraries / "libcudart.so.12"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=simulated.environment) as program:
        assert program.stdout
        program.stdout.readline()
        with tracing(tmp_path, pids=[program.pid]) as tracer:
            for _ in range(4):
                tracer.wait_for("second")
            tracer.stop()
        program.kill()
    with open_reader(tracer.database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        intervals = reader.offcpu_rows(window)
    of_thread = {tid: intervals[intervals["tid"] == tid] for tid in np.unique(intervals["tid"]).tolist()}
    mine = of_thread[program.pid]
    mine = mine[mine["state"] == THREAD_STATES.index("sleep")]
    place, is_timed = mine["futex"] // 8, mine["waker_kind"] == WAKER_KINDS.index("timer")
    ((interpreter, _),) = Counter(place[is_timed & (place != 0)].tolist()).most_common(1)
    is_marked = (mine["futex"] & INTERPRETER_LOCK) != 0  # its mutex and the word for handing it over, too
    at_lock = (place != 0) & ~is_marked
    assert is_marked[place == interpreter].all()
    print(f"\n{(place == 0).sum()} naps, {is_marked.sum()} waits for the interpreter, {at_lock.sum()} others")
    assert min((place == 0).sum(), (place == interpreter).sum(), at_lock.sum()) > _FEW
    assert not (at_lock & is_timed).any()
    of_thread = {tid: _unmarked(found) if is_by_signature else found for tid, found in of_thread.items()}
    found = gil_waits(of_thread)[program.pid]
    assert found >= set(mine["start_ns"][place == interpreter].tolist())
    assert not found & set(mine["start_ns"][at_lock].tolist())


def _unmarked(intervals: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As of an interpreter that could not be read."""
    changed: np.ndarray[Any, Any] = intervals.copy()
    changed["futex"] &= ~INTERPRETER_LOCK
    return changed
