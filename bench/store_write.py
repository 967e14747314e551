"""Rows per second from numpy columns to committed event rows, and bytes per event.

Run: python bench/store_write.py [--rows N] [--busy]. `--busy` keeps a second Python thread running all the time, which
is worse than any recorder. Prints figures; the target is 40,000 rows/s with no row lost.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ingero.store.records import SessionFacts
from ingero.store.vocabulary import STATE_COLUMNS
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

_BATCH_ROWS = 5_000
_START_NS = 1_790_000_000_000_000_000


def _columns(rng: np.random.Generator, writer: Writer, begin: int) -> dict[str, tables.Column]:
    """One batch that looks like calls of a training loop: mostly on-CPU, some waits, a few named culprits."""
    duration = rng.lognormal(10, 2, _BATCH_ROWS).astype(np.int64)
    waits = rng.random(_BATCH_ROWS) < 0.1
    clocks: dict[str, tables.Column] = dict.fromkeys(STATE_COLUMNS, 0)
    clocks["run_ns"] = np.where(waits, duration // 3, duration)
    clocks["runq_ns"] = np.where(waits, duration - duration // 3, 0)
    return clocks | {
        "session": writer.session,
        "start_ns": _START_NS + (begin + np.arange(_BATCH_ROWS)) * 20_000,
        "duration_ns": duration,
        "process": 1,
        "pid": 4242,
        "tid": rng.integers(4242, 4250, _BATCH_ROWS),
        "source": 4,
        "op": rng.integers(1, 60, _BATCH_ROWS),
        "arg0": rng.integers(0, 1 << 30, _BATCH_ROWS, dtype=np.uint64),
        "arg1": rng.integers(1 << 46, 1 << 47, _BATCH_ROWS, dtype=np.uint64),
        "stream": 0x5555_0000_1000,
        "gpu_id": 0,
        "caller": rng.integers(0x7F00_0000_0000, 0x7F00_0000_1000, _BATCH_ROWS, dtype=np.uint64),
        "caller_library": writer.intern("libtorch_cuda.so"),
        "function": rng.integers(0x5555_0000_0000, 0x5555_0000_0100, _BATCH_ROWS, dtype=np.uint64),
        "cgroup_id": 5722,
        "comm": writer.intern("python3"),
        "cpu": rng.integers(0, 16, _BATCH_ROWS),
        "residual_ns": 0,
        "involuntary_switches": waits.astype(np.int64),
        "switches": waits.astype(np.int64),
        "culprit_pid": np.where(waits, 77, 0),
        "culprit_name": np.where(waits, writer.intern("fluent-bit"), 0),
        "culprit_ns": np.where(waits, duration // 2, 0),
        "flags": 16,
    }


@contextmanager
def _busy_thread(is_on: bool) -> Iterator[None]:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin, daemon=True)
    if is_on:
        thread.start()
    yield
    stop.set()
    if is_on:
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, _busy_thread(options.busy):
        path = Path(folder) / "bench.db"
        facts = SessionFacts(uuid="bench", started_ns=_START_NS)
        with Writer(path, session=facts, node="bench") as writer:
            batches = [_columns(rng, writer, begin) for begin in range(0, options.rows, _BATCH_ROWS)]
            begin_s, cpu_s = time.perf_counter(), time.process_time()
            for batch in batches:
                rows = tables.EVENTS.rows(_BATCH_ROWS, **batch)
                while rows:  # unlike a recorder, wait for room: the rate is the question here
                    rows = rows[writer.append(tables.EVENTS, rows) :]
                    if rows:
                        writer.flush()
            writer.flush()
            elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
            close_s = time.perf_counter()
        close_s = time.perf_counter() - close_s
        count = len(batches) * _BATCH_ROWS
        print(f"rows/s              {count / elapsed_s:12,.0f}")
        if not options.busy:
            print(f"CPU us per row      {cpu_s / count * 1e6:12.2f}")
        print(f"close, indexes (s)  {close_s:12.2f}")
        print(f"bytes per event     {path.stat().st_size / count:12.1f}  (indexes included)")


if __name__ == "__main__":
    main()
