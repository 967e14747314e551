"""A thread that ends while a second is being read counts once, with what it did."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.period import period_until
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.store.vocabulary import STATES
from ingero.store.writing import tables
from tests.integration.targets import until
from tests.unit.kept_rows import MemorySink

pytestmark = pytest.mark.integration
LIVES_S = 2

# A thread that sleeps until a line comes. The answer comes when it has ended.
PROGRAM = """
import sys, threading
over = threading.Event()
sleeper = threading.Thread(target=over.wait)
sleeper.start()
print("ready", flush=True)
sys.stdin.readline()
over.set()
sleeper.join()
print("ended", flush=True)
sys.stdin.readline()
"""


def _ended_threads(kernel: KernelSide, slot: int) -> int:
    row = kernel.maps["processes"].lookup(slot.to_bytes(4, "little"))
    assert row
    return int(np.frombuffer(row, kernel.layouts.dtype("process"))[0]["gone_threads"])


def test_a_thread_that_ends_while_a_second_is_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    command = [sys.executable, "-c", PROGRAM]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program,
        KernelSide(KernelSizes()) as kernel,
        Recorder(kernel, sink, RecorderOptions(pids=[program.pid])) as recorder,
    ):
        assert program.stdin
        assert program.stdout
        program.stdout.readline()
        begin_s = time.monotonic()
        recorder.start()
        traced_process = recorder.traced_processes.of_pid(program.pid)
        assert traced_process
        slot, look = traced_process.slot, kernel.read_threads

        def look_and_end() -> bytes:
            seen = look()
            if _ended_threads(kernel, slot):
                return seen
            program.stdin.write("\n")
            program.stdin.flush()
            program.stdout.readline()
            until(lambda: _ended_threads(kernel, slot) == 1, "the thread's account is folded")
            return seen

        time.sleep(LIVES_S)
        recorder.seconds.read(period_until(time.time_ns(), round(LIVES_S * 1e9)))
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "read_threads", look_and_end)
            recorder.seconds.read(period_until(time.time_ns(), 100_000_000))
        recorder.seconds.read(period_until(time.time_ns(), 100_000_000))
        lasted_s = time.monotonic() - begin_s
        program.stdin.close()
    rows = [row for row in sink.of(tables.THREAD_STATE_SECONDS) if row["process"] == traced_process.number]
    total_s = sum(int(row[f"{name}_ns"]) for row in rows for name in STATES) / 1e9  # type: ignore[call-overload]
    print(f"\n{total_s:.2f} s of two threads in {lasted_s:.2f} s")
    assert 2 * LIVES_S * 0.95 <= total_s <= 2 * lasted_s + 0.05
