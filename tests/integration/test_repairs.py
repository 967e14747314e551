"""A thread that calls although its account says that it sleeps: it repairs the account before the call counts."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.drops import DropReader
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.session import session_facts
from ingero.events import STATE_COLUMNS, CallFlag
from ingero.store.writing.writer import Writer
from tests.integration.callers import build_library
from tests.integration.targets import rows

pytestmark = pytest.mark.integration
CALLS = 50
SLEEP_S = 1
SPIN_NS = 20_000_000  # five ticks: the kernel's own books are late by up to one
SLEEP = STATE_COLUMNS.index("sleep_ns")

# Runs before all ordinary threads. When it came on the CPU it knows from the CPU time it has used since.
PROGRAM = f"""
import ctypes, os, sys, time
library, pointer = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
print("loaded", flush=True)
sys.stdin.readline()
library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1))
used_ns = time.thread_time_ns()
time.sleep({SLEEP_S})
now_ns, used_ns = time.monotonic_ns(), time.thread_time_ns() - used_ns
while time.monotonic_ns() < now_ns + {SPIN_NS}:
    pass
for _ in range({CALLS}):
    library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1))
print(now_ns - used_ns, flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a sleep whose end no scheduler program saw."""

    asleep: Any  # struct thread_dump
    called: Any
    came_on_ns: int  # by the thread's own clocks
    drops: dict[str, int]
    database: Path


def _thread_times(kernel: KernelSide, pid: int) -> Any:
    threads = np.frombuffer(kernel.read_threads(), kernel.layouts.dtype("thread_dump"))
    (account,) = threads[threads["tid"] == pid]
    return account


def _wait_until_asleep(kernel: KernelSide, pid: int) -> Any:
    """Until it has called and sleeps on."""
    state = kernel.layouts.enum("thread_state")["STATE_SLEEP"]
    while True:
        first = _thread_times(kernel, pid)
        time.sleep(0.02)
        second = _thread_times(kernel, pid)
        if second["hits"] and second["state"] == state and first["switches"] == second["switches"]:
            return second


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The clocks are detached while the thread sleeps, and its calls are not."""
    folder = tmp_path_factory.mktemp("repairs")
    command = [sys.executable, "-c", PROGRAM, str(build_library(folder))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "loaded\n"
        with (
            KernelSide(KernelSizes(), record_all=True) as kernel,
            Writer(folder / "recording.db", session=session_facts([process.pid]), node="node") as sink,
            Recorder(kernel, sink, RecorderOptions(pids=[process.pid])) as recorder,
        ):
            recorder.start()
            process.stdin.write("\n")
            process.stdin.flush()
            asleep = _wait_until_asleep(kernel, process.pid)
            drops = DropReader(kernel.maps["drops"], kernel.layouts)
            kernel.pause()
            came_on_ns = int(process.stdout.readline())
            called, missed = _thread_times(kernel, process.pid), drops.read()
            kernel.start()
            process.kill()
            recorder.run(should_stop=lambda: not len(recorder.traced_processes), on_second=lambda _: None)
            sink.flush()
    return Seen(asleep, called, came_on_ns, missed, folder / "recording.db")


def test_the_missed_events_are_counted_once(seen: Seen) -> None:
    counted = {name: seen.drops.get(name, 0) for name in ("switch_in_missed", "wakeup_missed", "snapshot_not_running")}
    assert counted == {"switch_in_missed": 1, "wakeup_missed": 1, "snapshot_not_running": 0}


def test_the_sleep_ends_when_the_thread_came_on_and_not_when_it_called(seen: Seen) -> None:
    slept_ns = int(seen.called["state_ns"][SLEEP] - seen.asleep["state_ns"][SLEEP])
    off_ns = int(seen.asleep["now_ns"]) + slept_ns - seen.came_on_ns
    print(f"\nby the account the thread came on {off_ns / 1e3:+.0f} us later than by its own clocks")
    assert abs(off_ns) < SPIN_NS // 10


def test_the_repaired_clocks_still_add_up(seen: Seen) -> None:
    assert seen.called["state_ns"].sum() == seen.called["now_ns"] - seen.called["created_ns"]


def test_calls_that_begin_after_the_repair_are_complete(seen: Seen) -> None:
    ((calls, flawed),) = rows(
        seen.database,
        f"SELECT count(*), sum((flags & {int(CallFlag.INCOMPLETE)}) != 0) FROM raw_events WHERE run_ns IS NOT NULL",
    )
    assert (calls, flawed) == (1 + CALLS, 0)


def test_the_interval_off_the_cpu_is_kept_without_waker_or_culprit(seen: Seen) -> None:
    ((kept,),) = rows(
        seen.database,
        f"SELECT count(*) FROM raw_offcpu WHERE tid = {int(seen.called['tid'])} AND waker_kind = 0 AND culprit_pid = 0 "
        f"AND abs(duration_ns - {SLEEP_S}e9) < {SPIN_NS}",
    )
    assert kept == 1
