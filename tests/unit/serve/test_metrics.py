"""What a recording gives to Prometheus: read by Prometheus's own client, over HTTP, beside slow and many scrapers."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ingero.capture.host.snapshots import AgentUsage
from ingero.capture.loop.drops import MEANINGS
from ingero.capture.sums.interval_sums import IntervalSums
from ingero.diagnose.findings import FindingKind, Incident, Severity
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import Pressure, SystemSample
from ingero.events import SyncIntervalFlag
from ingero.serve.http.addresses import Address, AddressError
from ingero.serve.metrics.catalogue import METRICS
from ingero.serve.metrics.intake import Intake
from ingero.serve.metrics.old_names import LEFT_OUT, OLD_METRICS, under_old_names
from ingero.serve.metrics.pump import Pump
from ingero.serve.metrics.registry import Registry
from ingero.serve.metrics.scrapes import Scrapes
from ingero.serve.metrics.text_format import as_text
from ingero.step_counts import counts_text
from ingero.store import histograms
from ingero.store.vocabulary import STATES
from ingero.store.writing import tables
from tests.unit.metrics_seconds import cell, second

ROOT = Path(__file__).resolve().parents[3]
SYNC = {"source": "cuda", "op": "cudaStreamSynchronize"}
ANYWHERE = Address("127.0.0.1", 0)
SYSTEM = SystemSample(
    cpu_percent=25.0,
    mem_percent=50.0,
    mem_total_bytes=16 << 30,
    mem_available_bytes=8 << 30,
    swap_used_bytes=0,
    load_avg=(1.5, 1.0, 0.5),
    pressure={
        "io": Pressure(some_avg10_percent=1.0, some_total_us=2_500_000, full_avg10_percent=0.0, full_total_us=500_000)
    },
    throttling={},
)
GPU = Gpu(index=3, uuid="GPU-abc", name='A "B"', memory_bytes=80 << 30, pci_bus_id="0:1", max_sm_clock_mhz=1980)
GPU_SAMPLE = GpuSample(
    uuid="GPU-abc",
    busy_percent=75,
    memory_busy_percent=None,
    memory_used_bytes=20 << 30,
    sm_clock_mhz=1500,
    slowdowns=("power cap",),
    power_w=350.5,
    temperature_c=61,
    processes={},
    memory_total_bytes=80 << 30,
    throttle_reasons=0x4,
)
# what Ingero 0.17 gives to Prometheus; ingero_infer_* stands for a dozen
ORIGINAL_NAMES = [
    "system_cpu_utilization",
    "system_memory_utilization",
    "system_memory_usage_available",
    "ingero_system_load_average_1m",
    "gpu_cuda_operation_duration_microseconds",
    "gpu_cuda_operation_count",
    "ingero_anomaly_count",
    "ingero_ringbuf_overflows_total",
    "ingero_trace_db_bytes",
    "ingero_trace_db_pruned_rows_total",
    "gpu_nccl_process_loaded",
    "gpu_nccl_processes_total",
    "gpu_nccl_collective_count",
    "gpu_nccl_collective_bytes_total",
    "gpu_nccl_collective_barrier_events",
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_fragmentation_estimate",
    "gpu_memory_process_allocated_bytes",
    "gpu_memcpy_bytes_total",
    "gpu_memcpy_duration_ms",
    "gpu_throttle_power_active",
    "gpu_throttle_thermal_active",
    "gpu_throttle_sw_active",
    "gpu_throttle_hw_active",
    "gpu_throttle_power_event_total",
    "gpu_throttle_thermal_event_total",
    "gpu_throttle_sw_event_total",
    "gpu_throttle_hw_event_total",
    "gpu_memfrag_ioctl_event_total",
    "gpu_kernel_launch_count",
    "gpu_kernel_launch_threads_per_block",
    "gpu_kernel_launch_grid_blocks",
    "ingero_infer_*",
]


class Sums:
    """A registry with what feeds it."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.intake = Intake(self.registry, MEANINGS)

    def read(self, *, with_old_names: bool = False) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Values by sample name and labels, as Prometheus's own client reads them."""
        families = self.registry.read()
        return parsed(as_text([*families, *(under_old_names(families) if with_old_names else ())]))

    def value(self, name: str, **labels: str) -> float | None:
        return self.read().get(name, {}).get(tuple(sorted(labels.items())))

    def of_parts(self, name: str) -> dict[str, float]:
        return {dict(labels)["part"]: value for labels, value in self.read()[name].items()}


def parsed(page: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture
def sums() -> Sums:
    return Sums()


def incident(number: int, lost_ns: int, *, cause: str = "cpu-contention") -> Incident:
    return Incident(
        number=number,
        cause=cause,
        resource="cpu",
        root="stress",
        kind=FindingKind.INCIDENT,
        severity=Severity.HIGH,
        start_ns=0,
        end_ns=None,
        lost_ns=lost_ns,
        lost_ratio=0.3,
        explained_ratio=1.0,
        peak_ratio=0.5,
        summary="",
    )


def test_calls_of_all_processes_and_seconds_are_summed(sums: Sums) -> None:
    for _ in range(2):
        sums.intake.second(
            second(cell("cudaStreamSynchronize", [1_000, 5_000], slot=1), cell("cudaStreamSynchronize", [900], slot=2))
        )
    assert sums.value("ingero_calls_total", **SYNC) == 6
    assert sums.value("ingero_call_duration_seconds_count", **SYNC) == 6
    assert sums.value("ingero_call_duration_seconds_sum", **SYNC) == pytest.approx(13.8e-6)


def test_bytes_are_summed(sums: Sums) -> None:
    sums.intake.second(second(cell("cudaMemcpyAsync", [1_000], size_bytes=4096)))
    assert sums.value("ingero_call_bytes_total", source="cuda", op="cudaMemcpyAsync") == 4096


def test_the_buckets_count_what_is_below_their_bounds(sums: Sums) -> None:
    durations_ns = np.random.default_rng(7).lognormal(11, 3, 5_000).astype(np.int64) + 1
    sums.intake.second(second(cell("cudaStreamSynchronize", durations_ns.tolist())))
    buckets = {
        dict(labels)["le"]: count for labels, count in sums.read()["ingero_call_duration_seconds_bucket"].items()
    }
    assert len(buckets) == 33
    for bound, count in buckets.items():
        assert count == np.count_nonzero(durations_ns < float(bound) * 1e9 * (1 - 1e-12)), bound


def test_a_quantile_of_the_buckets_is_within_one_bucket_of_the_recordings_own(sums: Sums) -> None:
    durations_ns = np.random.default_rng(3).lognormal(12, 1, 20_000).astype(np.int64)
    sums.intake.second(second(cell("cudaStreamSynchronize", durations_ns.tolist())))
    counts = sums.read()["ingero_call_duration_seconds_bucket"]
    bounds = sorted((float(dict(labels)["le"]), count) for labels, count in counts.items())
    p99_ns = histograms.percentiles(histograms.count(durations_ns), [0.99])[0]
    upper_s = next(bound for bound, count in bounds if count >= 0.99 * len(durations_ns))
    assert upper_s / 2 <= p99_ns / 1e9 <= upper_s


def test_off_cpu_time_has_a_series_per_state(sums: Sums) -> None:
    clocks = np.zeros(len(STATES), np.int64)
    clocks[STATES.index("runq")] = 250_000_000
    sums.intake.second(second(states_ns=clocks))
    assert sums.value("ingero_thread_time_seconds_total", state="runq") == 0.25
    assert sums.value("ingero_thread_time_seconds_total", state="sleep") == 0


def test_every_drop_counter_is_there_before_anything_is_lost(sums: Sums) -> None:
    assert {dict(labels)["counter"] for labels in sums.read()["ingero_dropped_total"]} == set(MEANINGS)
    sums.intake.second(second(drops={"sync_intervals_ring_full": 3}))
    assert sums.value("ingero_dropped_total", counter="sync_intervals_ring_full") == 3


def test_lost_time_grows_with_an_incident_and_is_counted_once(sums: Sums) -> None:
    for kind, lost_ns in ((ChangeKind.OPENED, 10**9), (ChangeKind.UPDATED, 3 * 10**9), (ChangeKind.CLOSED, 3 * 10**9)):
        sums.intake.finding(Change(kind, incident(1, lost_ns)))
    assert sums.value("ingero_lost_time_seconds_total", cause="cpu-contention") == 3
    assert sums.value("ingero_incidents_total", cause="cpu-contention", severity="high") == 1


def test_causes_that_lost_nothing_yet_are_0(sums: Sums) -> None:
    Intake(sums.registry, causes=["gil"])
    assert sums.value("ingero_lost_time_seconds_total", cause="gil") == 0


def test_sync_intervals_are_counted_and_their_time_is_split(sums: Sums) -> None:
    blank = dict.fromkeys(tables.SYNC_INTERVALS.columns, 0)
    interval = {
        **blank,
        "prev_sync_end_ns": 1,
        "idle_ns": 2_000_000,
        "busy_ns": 7_000_000,
        "return_delay_ns": 1_000_000,
    }
    rows = tables.SYNC_INTERVALS.rows(2, **{name: [value, value] for name, value in interval.items()})
    unknown = tables.SYNC_INTERVALS.rows(1, **{**interval, "idle_ns": None, "return_delay_ns": None, "busy_ns": None})
    found = IntervalSums().plus_intervals(rows[:1]).plus_intervals(rows[1:]).plus_intervals(unknown)
    sums.intake.second(second(intervals=found))
    assert sums.value("ingero_syncs_total") == 3
    assert sums.of_parts("ingero_sync_interval_time_seconds_total") == pytest.approx(
        {"idle": 0.004, "busy": 0.014, "return_delay": 0.002}
    )
    assert sums.value("ingero_steps_total", how="repetition") == 0


def test_steps_are_counted_by_how_they_are_known_and_their_time_is_split(sums: Sums) -> None:
    blank = dict.fromkeys(tables.STEPS.columns, 0)
    times = {"start_ns": [0, 10_000_000, 20_000_000], "end_ns": [10_000_000, 20_000_000, 30_000_000]}
    blocked = {"blocked_launch_ns": [3_000_000, 3_000_000, 0], "blocked_sync_ns": [0, 0, 4_000_000]}
    repetition, both = 5, 6  # numbers of texts
    rows = tables.STEPS.rows(3, **{**blank, **times, **blocked, "process": 1, "how": [repetition, repetition, both]})
    intervals = tables.SYNC_INTERVALS.rows(1, **{**dict.fromkeys(tables.SYNC_INTERVALS.columns, 0), "process": 1})
    found = IntervalSums().plus_steps(rows, both).plus_intervals(intervals)
    sums.intake.second(second(intervals=found))
    assert sums.value("ingero_steps_total", how="repetition") == 2
    assert sums.value("ingero_steps_total", how="both") == 1
    assert sums.of_parts("ingero_step_time_seconds_total") == pytest.approx({"host": 0.020, "blocked": 0.010})
    assert sums.value("ingero_syncs_total") == 1
    assert counts_text(found.counts.values()) == "3 steps"  # the sync is the end of one of them


def test_of_intervals_whose_launches_were_not_traced_only_the_return_delay_is_known(sums: Sums) -> None:
    blank = dict.fromkeys(tables.SYNC_INTERVALS.columns, 0)
    parts = {"idle_ns": 2_000_000, "busy_ns": 7_000_000, "return_delay_ns": 1_000_000}
    unseen = tables.SYNC_INTERVALS.rows(1, **{**blank, **parts, "flags": int(SyncIntervalFlag.ENQUEUES_UNSEEN)})
    sums.intake.second(second(intervals=IntervalSums().plus_intervals(unseen)))
    assert sums.value("ingero_syncs_total") == 1
    spent = sums.of_parts("ingero_sync_interval_time_seconds_total")
    assert spent == pytest.approx({"idle": 0.0, "busy": 0.0, "return_delay": 0.001})


def test_the_recordings_size_includes_its_write_ahead_log(sums: Sums, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(bytes(100))
    (tmp_path / "a.db-wal").write_bytes(bytes(20))
    Intake(sums.registry, database=tmp_path / "a.db").second(second())
    assert sums.value("ingero_recording_size_bytes") == 120


def test_a_slowdown_is_counted_when_it_begins(sums: Sums) -> None:
    free = replace(GPU_SAMPLE, throttle_reasons=0)
    for sample in (free, GPU_SAMPLE, GPU_SAMPLE, free, GPU_SAMPLE):
        sums.intake.second(second(system=SYSTEM, gpus=((GPU, sample),)))
    assert sums.value("ingero_gpu_slowdowns_total", reason="power cap", hw_id="3") == 2
    assert sums.value("ingero_gpu_slowdowns_total", reason="sync boost", hw_id="3") == 0
    assert sums.read(with_old_names=True)["gpu_throttle_power_event_total"][()] == 2


def test_only_incidents_that_go_on_are_open(sums: Sums) -> None:
    sums.intake.finding(Change(ChangeKind.OPENED, incident(1, 10**9)))
    sums.intake.finding(Change(ChangeKind.OPENED, incident(2, 10**9)))
    assert sums.value("ingero_active_incidents", cause="cpu-contention", severity="high") == 2
    sums.intake.finding(Change(ChangeKind.CLOSED, incident(1, 10**9)))
    assert sums.value("ingero_active_incidents", cause="cpu-contention", severity="high") == 1


def test_own_cost_is_shown(sums: Sums) -> None:
    agent = AgentUsage(cpu_ns=20_000_000, peak_rss_bytes=90 << 20)
    sums.intake.second(second(agent=agent, overhead_ratio=0.015, level=2))
    assert sums.value("ingero_agent_cpu_time_seconds_total") == 0.02
    assert sums.value("ingero_agent_memory_peak_bytes") == 90 << 20
    assert sums.value("ingero_overhead_ratio") == 0.015
    assert sums.value("ingero_overhead_level") == 2


def test_the_machine_is_shown_under_the_conventional_names(sums: Sums) -> None:
    later = Pressure(some_avg10_percent=1, some_total_us=5_000_000, full_avg10_percent=0, full_total_us=500_000)
    sums.intake.second(second(system=SYSTEM))
    sums.intake.second(second(system=replace(SYSTEM, pressure={"io": later})))
    assert sums.value("system_cpu_utilization_ratio") == 0.25
    assert sums.value("system_memory_linux_available_bytes") == 8 << 30
    assert sums.value("ingero_system_pressure_time_seconds_total", resource="io", share="some") == 2.5


def test_a_gpu_is_shown_under_the_conventional_names(sums: Sums) -> None:
    sums.intake.second(second(system=SYSTEM, gpus=((GPU, GPU_SAMPLE),)))
    assert sums.value("hw_gpu_utilization_ratio", hw_id="3") == 0.75
    assert sums.value("hw_gpu_memory_utilization_ratio", hw_id="3") == 0.25
    assert sums.value("hw_power_watts", hw_type="gpu", hw_id="3") == 350.5
    assert sums.value("ingero_gpu_slowdown", reason="power cap", hw_id="3") == 1
    assert sums.value("ingero_gpu_slowdown", reason="power brake", hw_id="3") == 0


def test_what_a_gpu_does_not_tell_is_left_out(sums: Sums) -> None:
    sums.intake.second(second(system=SYSTEM, gpus=((GPU, GPU_SAMPLE),)))
    assert sums.value("ingero_gpu_memory_busy_ratio", hw_id="3") is None


def test_a_gpu_that_does_not_answer_any_more_has_no_values(sums: Sums) -> None:
    sums.intake.second(second(system=SYSTEM, gpus=((GPU, GPU_SAMPLE),)))
    sums.intake.second(second(system=SYSTEM))
    assert sums.value("hw_gpu_utilization_ratio", hw_id="3") is None


def test_a_name_with_quotes_survives(sums: Sums) -> None:
    sums.intake.second(second(system=SYSTEM, gpus=((GPU, GPU_SAMPLE),)))
    [labels] = sums.read()["ingero_gpu_info"]
    assert dict(labels)["model"] == 'A "B"'


def test_the_old_names_hold_the_same_values(sums: Sums) -> None:
    durations_ns = [50_000] * 99 + [90_000_000]
    sums.intake.second(
        second(
            cell("cudaStreamSynchronize", durations_ns),
            system=SYSTEM,
            gpus=((GPU, GPU_SAMPLE),),
            drops={"sync_intervals_ring_full": 2},
        )
    )
    old = sums.read(with_old_names=True)
    operation = {"source": "cuda", "operation": "cudaStreamSynchronize"}
    # this parser appends _total to the names of counters that lack it
    assert old["gpu_cuda_operation_count_total"][tuple(sorted(operation.items()))] == 100
    p50 = old["gpu_cuda_operation_duration_microseconds"][tuple(sorted({**operation, "percentile": "p50"}.items()))]
    assert p50 == pytest.approx(50, rel=0.09)
    assert old["system_cpu_utilization"][()] == 0.25
    assert old["ingero_ringbuf_overflows_total"][()] == 2
    assert old["gpu_memory_free_bytes"][(("gpu_uuid", "GPU-abc"),)] == 60 << 30
    assert old["gpu_throttle_power_active"][(("gpu_uuid", "GPU-abc"),)] == 1


def test_every_name_of_the_original_is_offered_or_left_out_with_a_reason() -> None:
    offered = {metric.prometheus_name for metric in (*METRICS, *OLD_METRICS)}
    assert [name for name in ORIGINAL_NAMES if name not in offered and name not in LEFT_OUT] == []
    assert not offered & set(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_no_two_metrics_have_the_same_name_and_none_names_processes_or_kernels() -> None:
    names = [metric.prometheus_name for metric in (*METRICS, *OLD_METRICS)]
    assert len(names) == len(set(names))
    labels = {label for metric in METRICS for label in metric.labels}
    assert not labels & {"pid", "process", "kernel", "tid", "comm", "line"}


@contextmanager
def served(sums: Sums) -> Iterator[str]:
    with Scrapes(ANYWHERE, sums.registry) as scrapes:
        yield scrapes.url


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return cast("str", answer.read().decode())


def test_a_scrape_gets_the_page(sums: Sums) -> None:
    sums.intake.second(second(cell("cudaStreamSynchronize", [1_000])))
    with served(sums) as url:
        assert parsed(scrape(url))["ingero_calls_total"][tuple(sorted(SYNC.items()))] == 1


def test_another_path_is_not_found(sums: Sums) -> None:
    with served(sums) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(url.replace("/metrics", "/"))


@pytest.mark.parametrize(
    ("host", "status"), [("evil.example", 403), ("evil.example:9464", 403), ("localhost:9464", 200), ("[::1]", 200)]
)
def test_on_loopback_only_a_name_of_this_machine_is_answered(sums: Sums, host: str, status: int) -> None:
    with served(sums) as url:
        connection = HTTPConnection(url.split("/")[2])
        connection.request("GET", "/metrics", headers={"Host": host})
        assert connection.getresponse().status == status
        connection.close()


def test_a_port_that_is_taken_is_an_error_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(AddressError, match="cannot listen") as error:
            Scrapes(Address("127.0.0.1", other.getsockname()[1]), Registry())
        assert error.value.hint


def test_scrapers_that_say_nothing_keep_nobody_else_out_but_are_limited(sums: Sums) -> None:
    with served(sums) as url:
        place = (url.split("/")[2].split(":")[0], int(url.split(":")[2].split("/")[0]))
        silent = [socket.create_connection(place) for _ in range(12)]
        refused = [one for one in silent[8:] if one.recv(1) == b""]
        assert len(refused) == 4
        for one in silent:
            one.close()
    assert sums.value("ingero_metrics_refused_scrapes_total") == 4


class Stuck(Intake):
    """Takes nothing until it is let go."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.began, self.go = threading.Event(), threading.Event()

    def second(self, second: Any) -> None:
        self.began.set()
        self.go.wait()
        super().second(second)


def test_seconds_that_find_no_room_are_counted_and_nobody_waits(sums: Sums) -> None:
    stuck = Stuck(sums.registry)
    with Pump(stuck, held=2) as pump:
        pump.second(second(cell("cudaStreamSynchronize", [1_000])))
        stuck.began.wait()
        for _ in range(5):
            pump.second(second(cell("cudaStreamSynchronize", [1_000])))
        stuck.go.set()
    assert pump.dropped == 3
    assert sums.value("ingero_calls_total", **SYNC) == 3
    assert sums.value("ingero_metrics_dropped_total") == 3


def test_a_second_that_cannot_be_summed_costs_itself_only(sums: Sums) -> None:
    with Pump(sums.intake) as pump:
        pump.second(second(states_ns=np.zeros(1, np.int64)))
        pump.second(second(cell("cudaStreamSynchronize", [1_000])))
    assert sums.value("ingero_calls_total", **SYNC) == 1
    assert sums.value("ingero_metrics_dropped_total") == 1
