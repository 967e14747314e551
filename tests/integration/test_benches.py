"""The benches run, and what they print adds up. Nothing here depends on how fast this machine is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FULL_RATE = pytest.mark.alone  # a program that gets the CPUs to itself makes the calls that are counted


def bench(name: str, *options: str) -> Any:
    command = [sys.executable, "-m", f"bench.{name}", "--short", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sync() -> dict[str, Any]:
    return bench("drain")


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    return bench("records")


@pytest.fixture(scope="module")
def exports() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = bench("export")
    return runs


@pytest.fixture(scope="module")
def overhead() -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = bench("overhead", "--loop", "gpu")["gpu"][0]
    return turns


@pytest.mark.parametrize("run", ["sustained", "beyond_capacity"])
def test_every_produced_record_is_summed_or_counted_as_lost(sync: dict[str, Any], run: str) -> None:
    result = sync[run]
    assert result["produced"] > 100_000
    assert result["summed"] + result["lost_in_ring"] == result["produced"]


@pytest.mark.parametrize("run", ["sustained", "beyond_capacity"])
def test_every_offered_row_is_stored_or_counted_as_lost(sync: dict[str, Any], run: str) -> None:
    result = sync[run]
    assert result["offered"] > 0
    assert result["stored"] + result["lost_in_queue"] == result["offered"]


def test_rows_beyond_the_databases_capacity_are_lost_and_counted(sync: dict[str, Any]) -> None:
    result = sync["beyond_capacity"]
    assert result["lost_in_queue"] + result["lost_in_ring"] > 0
    assert result["stored"] > 0


@FULL_RATE
def test_record_all_stores_every_call_or_counts_it_as_lost(records: dict[str, Any]) -> None:
    result = records["sustained"]
    assert result["calls"] > 100_000
    assert result["stored"] + result["lost_in_ring"] + result["lost_in_queue"] == result["calls"]


@FULL_RATE
def test_an_agent_that_stood_still_counts_what_it_missed(records: dict[str, Any]) -> None:
    result = records["stalled"]
    assert result["lost_in_ring"] > 0
    assert result["stored"] + result["lost_in_ring"] + result["lost_in_queue"] == result["calls"]


@FULL_RATE
def test_the_overhead_bench_measures_the_same_loop_in_every_mode(overhead: list[dict[str, Any]]) -> None:
    assert [turn["mode"] for turn in overhead] == ["untraced", "traced", "launches at the driver only"]
    assert all(turn["step_count"] > 0 for turn in overhead)
    assert all(turn["p50_ms"] <= turn["p99_ms"] for turn in overhead)


@FULL_RATE
def test_an_untraced_turn_has_no_agent(overhead: list[dict[str, Any]]) -> None:
    assert overhead[0]["agent_cpu_percent"] == 0
    assert overhead[0]["probed_calls_per_s"] == 0


@FULL_RATE
def test_launches_at_the_driver_only_are_fewer_probed_calls_of_the_same_launches(
    overhead: list[dict[str, Any]],
) -> None:
    _, both, driver_only = overhead
    probes_per_step = [turn["probed_calls_per_s"] * turn["mean_ms"] for turn in (both, driver_only)]
    assert 0 < probes_per_step[1] < probes_per_step[0]


@FULL_RATE
def test_every_call_of_the_loop_costs_bytes_on_disk(overhead: list[dict[str, Any]]) -> None:
    assert all(turn["bytes_per_call"] > 0 for turn in overhead[1:])


def test_the_start_up_bench_sees_the_first_call_of_a_running_trainer_after_the_clocks() -> None:
    result = bench("start_up")
    ended = {mark["phase"]: mark["wall_ms"] for mark in result["phases"]}
    assert list(ended)[:2] == ["interpreter", "imports"]
    assert ended["objects loaded"] < result["first_call_ms"]
    assert result["check_cpu_ms"] > 0


def test_the_bench_of_stacks_says_what_each_depth_costs() -> None:
    found = bench("stacks")["programs_us"]
    assert found["80 frames"]["with stacks"] > found["5 frames"]["with stacks"] > found["5 frames"]["without"] > 0


def test_each_fact_that_is_read_once_a_second_has_its_cost() -> None:
    figures = bench("machine_facts")
    assert {name.split()[1] for name in figures} == {"GPUs", "processes", "CPUs"}
    assert all(us > 0 for us in figures.values())


def test_ten_times_the_recording_is_exported_in_the_same_memory(exports: list[dict[str, Any]]) -> None:
    for form in ("perfetto", "chrome", "flamegraph", "pprof"):
        small, large = (run for run in exports if run["form"] == form)
        assert large["events"] == 10 * small["events"]
        assert large["peak_rss_bytes"] < 1.1 * small["peak_rss_bytes"]
        assert large["packets"] >= small["packets"]


def test_the_bench_of_metrics_counts_what_a_scrape_holds() -> None:
    small, large, every, old = bench("metrics").values()
    assert 36 * 4 < small["series"] < large["series"] < every["series"]
    assert large["series"] < old["series"]
    assert all(0 < row["scrape_p50_ms"] <= row["scrape_p95_ms"] and row["bytes"] > 0 for row in (small, large, old))


def test_twenty_readers_of_the_dashboard_are_all_answered() -> None:
    found = bench("dashboard")
    assert found["errors"] == 0
    assert found["answers"] >= 20
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["max_ms"]


def test_every_row_of_the_bench_of_writing_takes_its_bytes() -> None:
    command = [sys.executable, "bench/store_write.py", "--rows", "20000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    printed = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert float(printed["bytes per event"].split()[0]) > 50


def test_memory_of_readers_is_that_of_more_processes() -> None:
    found = bench("reader_memory")
    assert found["without"]["processes"] < found["with readers"]["processes"]
    assert set(found["with readers"]["by_name"]) > {"ingero-nursery", "ingero-opener", "ingero-reader"}


def test_beside_hostile_programs_calls_of_others_are_recorded() -> None:
    found = bench("hostile", "--kind", "string_table")
    assert [one["recorded_ratio"] for one in found["quiet"]] == [1]
    assert [one["kind"] for one in found["worst"]] == ["string_table"]
    assert min(one["recorded_ratio"] for one in found["worst"]) >= 0.95


def test_damaged_recordings_are_answered_with_a_sentence() -> None:
    command = [sys.executable, "-m", "bench.damaged_recordings", "--files", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"] == found["commands"] > 0


@pytest.mark.further
def test_a_situation_that_people_met_is_explained_as_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.situations", "logger_child", "--short", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout, done.stdout
    assert (tmp_path / "logger_child.0.db").exists()
