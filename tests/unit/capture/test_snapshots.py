"""Snapshots have the time at which the host was read: growth between two readings is of the time between them."""

from __future__ import annotations

from itertools import count

from ingero.capture.host.snapshots import SnapshotRows
from ingero.capture.loop.period import Period
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS
LATE_NS = (1_000_000, 380_000_000, 2_000_000)  # by which the host was read after the second had ended


def test_a_snapshot_has_the_time_at_which_the_host_was_read() -> None:
    sink, seconds = MemorySink(), count(1)
    times = iter([BEGIN_NS + (second + 1) * SECOND_NS + late for second, late in enumerate(LATE_NS)])
    rows = SnapshotRows(sink, lambda: next(times))
    for second in range(len(LATE_NS)):
        rows.write(Period(BEGIN_NS + second * SECOND_NS, SECOND_NS), {})
    written = [row["time_ns"] for row in sink.of(tables.SNAPSHOTS)]
    assert written == [BEGIN_NS + next(seconds) * SECOND_NS + late for late in LATE_NS]


def test_the_busy_time_of_cpus_is_of_the_time_between_the_readings_too() -> None:
    sink = MemorySink()
    times = iter([BEGIN_NS + SECOND_NS, BEGIN_NS + 2_380_000_000])
    rows = SnapshotRows(sink, lambda: next(times))
    for second in range(2):
        rows.write(Period(BEGIN_NS + second * SECOND_NS, SECOND_NS), {})
    assert [row["elapsed_ns"] for row in sink.of(tables.CPU_SECONDS)] == [1_380_000_000]
