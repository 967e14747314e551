"""The longest that trimming keeps rows waiting, over a filled database that is being recorded into at the full rate.

Run: python -m bench.retention [--max-db 200m] [--rows N]. Prints the longest and the mean step, what was kept, and the
size of file and log against the limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.retention import log_bytes
from ingero.store.writing.writer import Writer
from ingero.units import format_bytes, format_count, parse_size_bytes

_BATCH_ROWS = 10_000
_START_NS = 1_790_000_000_000_000_000
_PROCESSES = 60
_ROWS_PER_S = 40_000


def _events(writer: Writer, begin: int) -> Sequence[tables.Row]:
    start = _START_NS + (begin + np.arange(_BATCH_ROWS)) * (10**9 // _ROWS_PER_S)
    return tables.EVENTS.rows(
        _BATCH_ROWS,
        session=writer.session,
        start_ns=start,
        duration_ns=np.arange(_BATCH_ROWS) * 977 % 1_000_003,
        process=1,
        pid=4242,
        tid=4242,
        source=1,
        op=3,
        caller=np.arange(_BATCH_ROWS) + (1 << 46),
        run_ns=1_000,
        runq_ns=7,
    )


def _op_stats(writer: Writer, second: int) -> Sequence[tables.Row]:
    return tables.OP_STATS.rows(
        _PROCESSES * 20,
        session=writer.session,
        start_ns=_START_NS + second * 10**9,
        process=np.repeat(np.arange(_PROCESSES), 20),
        source=1,
        op=np.tile(np.arange(20), _PROCESSES),
        count=11,
        sum_ns=70_000,
        run_ns=1_000,
    )


def _fill(writer: Writer, rows: int, path: Path) -> int:
    """Appends rows as fast as the writer accepts them; returns the largest file size seen."""
    largest = 0
    for begin in range(0, rows, _BATCH_ROWS):
        writer.append(tables.EVENTS, _events(writer, begin))
        if begin % _ROWS_PER_S == 0:
            writer.append(tables.OP_STATS, _op_stats(writer, begin // _ROWS_PER_S))
        writer.flush()
        largest = max(largest, path.stat().st_size + log_bytes(path))
    return largest


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-db", type=parse_size_bytes, default=parse_size_bytes("200m"))
    parser.add_argument("--rows", type=int, default=4_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "r.db"
        begin = time.perf_counter()
        facts = SessionFacts(uuid="bench", started_ns=_START_NS)
        with Writer(path, session=facts, node="bench", max_db_bytes=options.max_db) as writer:
            largest = _fill(writer, options.rows, path)
            steps, longest_s = writer.trim_steps, writer.longest_trim_s
        spent_s = time.perf_counter() - begin
        print(f"{format_count(options.rows)} rows in {spent_s:.1f} s, {options.rows / spent_s:,.0f} rows/s")
        print(f"{steps} steps of trimming, the longest {longest_s * 1e3:.1f} ms; lost {writer.drops() or 'nothing'}")
        print(f"limit {format_bytes(options.max_db)}: at most {format_bytes(largest)} with its log")


if __name__ == "__main__":
    main()
