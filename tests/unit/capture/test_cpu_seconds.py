"""CPU seconds: growth of each CPU's ticks, between readings a second apart."""

from __future__ import annotations

import json

import pytest

from ingero.capture.sums.cpu_seconds import CpuSeconds
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

SECOND_NS = 1_000_000_000
BOOTED_NS = 1_790_000_000 * SECOND_NS


def stat(*cpus: str) -> str:
    """A /proc/stat; each CPU: its name, user nice system idle iowait irq softirq steal guest guest_nice."""
    return "\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *(f"cpu{cpu}" for cpu in cpus), "intr 5 1", "ctxt 7"])


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


def test_each_cpu_has_what_it_did_since_the_reading_before(sink: MemorySink) -> None:
    seconds = CpuSeconds(sink)
    seconds.write(stat("0 10 0 5 100 2 0 1 0 3 0", "1 0 0 0 50 0 0 0 0 0 0"), BOOTED_NS)
    seconds.write(stat("0 50 1 14 140 5 1 4 4 9 0", "1 0 0 0 150 0 0 0 0 0 0"), BOOTED_NS + SECOND_NS)
    (row,) = sink.of(tables.CPU_SECONDS)
    assert json.loads(str(row["cpus"])) == [[0, 50, 40, 3, 4, 4], [1, 0, 100, 0, 0, 0]]
    assert (row["time_ns"], row["elapsed_ns"], row["tick_ns"]) == (BOOTED_NS + SECOND_NS, SECOND_NS, 10_000_000)


def test_readings_within_a_second_are_put_off(sink: MemorySink) -> None:
    seconds = CpuSeconds(sink)
    for twentieth in range(41):
        ticks = f"0 {5 * twentieth} 0 0 0 0 0 0 0 0 0"
        seconds.write(stat(ticks), BOOTED_NS + twentieth * SECOND_NS // 20)
    busy = [json.loads(str(row["cpus"]))[0][1] for row in sink.of(tables.CPU_SECONDS)]
    assert busy == [90, 90]  # one row each 0.9 s: nothing of the time between is left out


def test_a_cpu_that_has_come_or_gone_is_left_out_and_steps_back_are_no_time(sink: MemorySink) -> None:
    seconds = CpuSeconds(sink)
    seconds.write(stat("0 0 0 0 9 9 0 0 0 0 0", "1 0 0 0 0 0 0 0 0 0 0"), BOOTED_NS)
    seconds.write(stat("0 0 0 0 8 10 0 0 0 0 0", "2 5 0 0 5 0 0 0 0 0 0"), BOOTED_NS + SECOND_NS)
    (row,) = sink.of(tables.CPU_SECONDS)
    assert json.loads(str(row["cpus"])) == [[0, 0, 0, 1, 0, 0]]


def test_a_stat_that_cannot_be_read_gives_no_row(sink: MemorySink) -> None:
    seconds = CpuSeconds(sink)
    seconds.write("", BOOTED_NS)
    seconds.write("", BOOTED_NS + SECOND_NS)
    assert sink.of(tables.CPU_SECONDS) == []
