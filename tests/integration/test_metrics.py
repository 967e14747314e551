"""A real recording is scraped while it goes on, and what was scraped is what was stored."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ingero.demo.gpusim import build
from ingero.demo.workloads.program import Program
from tests.integration.targets import rows
from tests.integration.tracing import Tracer, tracing
from tests.unit.otlp_receiver import receiving

pytestmark = pytest.mark.integration

OPTIONS = ("--prometheus", "127.0.0.1:0", "--metrics-compat", "--otlp-insecure")


@dataclass
class Scraped:
    """A page of metrics, when every call had been made, and the recording."""

    families: dict[str, Metric]
    pushed: ExportMetricsServiceRequest
    database: Path

    def counts(self, name: str, value: str) -> Counter[str]:
        return Counter(
            {
                sample.labels["op"]: round(sample.value)
                for sample in self.families[name].samples
                if sample.name == value and "op" in sample.labels
            }
        )


def address(tracer: Tracer) -> str:
    """What the tracer says on standard error before it begins."""
    found = re.search(r"metrics: (http://\S+)", tracer.stderr_text())
    assert found, "the address of the metrics was not said"
    return found[1]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    folder = tmp_path_factory.mktemp("metrics")
    environment = {**os.environ, **build.environment(build.build(), ctl=folder / "knobs", sched="block")}
    with Program.module("train", "--seconds", 60, "--workers", 1, environment=environment) as trainer:
        trainer.wait_for("ready")
        with (
            receiving() as receiver,
            tracing(folder, pids=[trainer.pid], options=[*OPTIONS, "--otlp", str(receiver.endpoint.address)]) as tracer,
        ):
            url = address(tracer)
            for _ in range(3):
                tracer.wait_for("second")
            os.kill(trainer.pid, signal.SIGSTOP)  # what is scraped then is all that there will be
            while any(tracer.wait_for("second")["calls"].values()):
                pass
            tracer.wait_for("second")
            with urllib.request.urlopen(url, timeout=30) as answer:
                page = answer.read().decode()
            tracer.stop()
            os.kill(trainer.pid, signal.SIGCONT)
        families = {family.name: family for family in text_string_to_metric_families(page)}
        return Scraped(families, receiver.requests[-1][2], tracer.database)


def test_counts_equal_the_recordings(scraped: Scraped) -> None:
    stored = dict(rows(scraped.database, "SELECT op_name, sum(count) FROM op_stats GROUP BY 1"))
    assert stored["cudaLaunchKernel"] > 100
    assert +scraped.counts("ingero_calls", "ingero_calls_total") == +Counter(stored)


def test_the_last_push_holds_the_same_counts(scraped: Scraped) -> None:
    [scope] = scraped.pushed.resource_metrics[0].scope_metrics
    [calls] = [metric for metric in scope.metrics if metric.name == "ingero.calls"]
    pushed = Counter(
        {
            next(one.value.string_value for one in point.attributes if one.key == "op"): point.as_int
            for point in calls.sum.data_points
        }
    )
    assert +pushed == +scraped.counts("ingero_calls", "ingero_calls_total")


def test_histograms_hold_every_call_that_was_timed(scraped: Scraped) -> None:
    timed = dict(rows(scraped.database, "SELECT op_name, sum(count - untimed) FROM op_stats GROUP BY 1"))
    found = scraped.counts("ingero_call_duration_seconds", "ingero_call_duration_seconds_count")
    assert +found == +Counter(timed)


def test_the_old_counters_are_there_and_equal(scraped: Scraped) -> None:
    old = {
        sample.labels["operation"]: round(sample.value)
        for sample in scraped.families["gpu_cuda_operation_count"].samples
    }
    assert old["cudaLaunchKernel"] == scraped.counts("ingero_calls", "ingero_calls_total")["cudaLaunchKernel"]


def test_the_agents_own_cost_and_the_machine_are_there(scraped: Scraped) -> None:
    [cpu_s] = [sample.value for sample in scraped.families["ingero_agent_cpu_time_seconds"].samples]
    [busy] = [sample.value for sample in scraped.families["system_cpu_utilization_ratio"].samples]
    assert cpu_s > 0
    assert 0 <= busy <= 1
