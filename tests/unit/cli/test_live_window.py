"""The window of the live view: sums of the last seconds, percentiles of their histograms, flags."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.busy_second import Load, cell, second
from ingero.capture.loop.period import period_until
from ingero.capture.loop.second import SecondOfCounts
from ingero.cli.live.state import OpLine
from ingero.cli.live.tables import flags_of
from ingero.cli.live.window import Window
from ingero.store import histograms

EMPTY = second(Load(processes=0), 0)
MS = 1_000_000


def calls(name: str, *durations_ns: int, slot: int = 0, caller: int = 1, errors: int = 0) -> SecondOfCounts:
    """A second in which one process made these calls."""
    return replace(EMPTY, cells=[cell(slot, name, caller, np.asarray(durations_ns), errors=errors)])


def op(window: Window, name: str) -> OpLine:
    return next(line for line in window.ops() if line.op.name == name)


def test_calls_of_all_callers_and_processes_are_one_line() -> None:
    window = Window()
    cells = [cell(slot, "cudaMalloc", caller, np.asarray([MS])) for slot in (0, 1) for caller in (1, 2, 3)]
    window.add(replace(EMPTY, cells=cells))
    line = op(window, "cudaMalloc")
    assert (line.count, line.total) == (6, 6)
    assert line.wall_ratio == pytest.approx(6 * MS / 2e9)  # of two processes' second


def test_percentiles_are_those_of_the_whole_window() -> None:
    random = np.random.default_rng(1)
    durations = (random.lognormal(0, 1, (8, 500)) * MS).astype(np.int64)
    window = Window()
    for row in durations:
        window.add(calls("cudaStreamSynchronize", *row.tolist()))
    line = op(window, "cudaStreamSynchronize")
    expected = histograms.percentiles(histograms.count(durations.ravel()), (0.5, 0.95, 0.99), max_ns=durations.max())
    assert [line.p50_ns, line.p95_ns, line.p99_ns] == expected
    assert line.p99_ns == pytest.approx(np.quantile(durations, 0.99), rel=0.1)


def test_a_second_leaves_the_window_but_not_the_total() -> None:
    window = Window(keep_s=3)
    window.add(calls("cudaMalloc", MS))
    for _ in range(3):
        window.add(calls("cudaMalloc", MS, MS))
    assert (op(window, "cudaMalloc").count, op(window, "cudaMalloc").total) == (6, 7)
    assert window.length_s == pytest.approx(3)


def test_short_seconds_count_by_their_length() -> None:
    window = Window(keep_s=3)
    for _ in range(100):
        window.add(replace(calls("cudaMalloc", MS), period=period_until(10**18, 50 * MS)))
    assert window.length_s == pytest.approx(3, abs=0.5)
    assert op(window, "cudaMalloc").count == round(window.length_s / 0.05)


def test_a_call_is_slow_against_its_own_past_only() -> None:
    window = Window(keep_s=2)
    window.add(calls("cudaMalloc", *[9 * MS] * 200))
    assert flags_of(op(window, "cudaMalloc")) == []
    for _ in range(3):
        window.add(calls("cudaMalloc", *[MS] * 200))
    assert flags_of(op(window, "cudaMalloc")) == []
    window = Window(keep_s=2)
    for duration_ns in (MS, MS, 4 * MS):
        window.add(calls("cudaMalloc", *[duration_ns] * 200))
    assert flags_of(op(window, "cudaMalloc")) == ["slow"]


def test_too_few_calls_are_not_judged() -> None:
    window = Window(keep_s=2)
    for duration_ns in (MS, MS, 40 * MS):
        window.add(calls("cudaMalloc", *[duration_ns] * 9))
    assert flags_of(op(window, "cudaMalloc")) == []


def test_failed_calls_and_device_waits_are_flagged() -> None:
    window = Window()
    window.add(calls("cudaStreamSynchronize", MS, errors=1))
    assert flags_of(op(window, "cudaStreamSynchronize")) == ["err", "wait"]


def test_clocks_culprits_drops_and_host_events_are_summed() -> None:
    load = Load(processes=2, culprits=1, drops=2)
    window = Window()
    for number in range(3):
        window.add(second(load, number))
    one = second(load, 0)
    assert window.states_ns() == tuple((3 * one.states_ns).tolist())
    assert [(line.name, line.ns, line.switches) for line in window.culprits()] == [("hog0", 63 * MS, 120)]
    assert {line.name: line.total for line in window.drop_lines()} == {"repaired_ns": 6, "switch_in_missed": 6}
    assert {(event.source, event.op): event.count for event in window.host()} == {
        (event.source, event.op): 3 * event.count for event in one.host
    }


def test_what_each_process_did_adds_up_to_the_calls() -> None:
    window = Window()
    window.add(second(Load(processes=3), 0))
    assert sum(sums.calls for sums in window.process_sums().values()) == sum(line.count for line in window.ops())
