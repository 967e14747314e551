"""What a recording pushes: taken by a receiver of the test's own, which decodes it with OpenTelemetry's messages."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1 import metrics_pb2

from ingero.discover.gpus import Gpu, GpuSample
from ingero.serve.http.tls import self_signed, tls_context
from ingero.serve.metrics.intake import Intake
from ingero.serve.metrics.otlp import as_json, as_request
from ingero.serve.metrics.push_settings import CERTIFICATE_VARIABLE, HEADERS_VARIABLE, HISTOGRAM_VARIABLE
from ingero.serve.metrics.pushes import Pushes
from ingero.serve.metrics.registry import Registry
from ingero.serve.otlp_endpoint import Endpoint, PushError
from ingero.store import histograms
from tests.unit.metrics_seconds import cell, second
from tests.unit.otlp_receiver import Receiver, receiving

NOWHERE: Mapping[str, str] = {}
HOURLY_S = 3600.0  # so that only the last push comes


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def push(receiver: Receiver, fill: Callable[[Intake], None], endpoint: Endpoint | None = None, **more: Any) -> Pushes:
    """One push of what `fill` has recorded."""
    registry = Registry()
    fill(Intake(registry))
    options = {"node": "gpu-7", "environ": NOWHERE, "period_s": HOURLY_S, **more}
    with Pushes(endpoint or receiver.endpoint, registry, **options) as pushes:
        pass
    return pushes


def quiet(intake: Intake) -> None:
    intake.second(second())


def attributes(point: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}


def test_counters_are_cumulative_sums_since_the_recording_began(receiver: Receiver) -> None:
    push(receiver, lambda intake: intake.second(second(cell("cudaLaunchKernel", [5_000] * 7))))
    metric = receiver.metric("ingero.calls")
    [point] = metric.sum.data_points
    assert point.as_int == 7
    assert attributes(point) == {"source": "cuda", "op": "cudaLaunchKernel"}
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert 0 < point.start_time_unix_nano < point.time_unix_nano


def test_the_push_says_whose_it_is(receiver: Receiver) -> None:
    push(receiver, quiet)
    [(path, headers, request)] = receiver.requests
    assert path == "/v1/metrics"
    assert headers["content-type"] == "application/x-protobuf"
    facts = attributes(request.resource_metrics[0].resource)
    assert (facts["service.name"], facts["host.name"]) == ("ingero", "gpu-7")


def test_an_exponential_histogram_counts_every_call_within_a_bucket_of_its_duration(receiver: Receiver) -> None:
    durations_ns = np.random.default_rng(5).lognormal(11, 2, 5_000).astype(np.int64) + 1
    push(receiver, lambda intake: intake.second(second(cell("cudaStreamSynchronize", durations_ns.tolist()))))
    [point] = receiver.metric("ingero.call.duration").exponential_histogram.data_points
    assert point.count == point.zero_count + sum(point.positive.bucket_counts) == 5_000
    assert point.sum == pytest.approx(durations_ns.sum() / 1e9)
    assert point.zero_count == np.count_nonzero(durations_ns < point.zero_threshold * 1e9)
    base = 2 ** (2**-point.scale)
    upper_s = [base ** (point.positive.offset + index + 1) for index in range(len(point.positive.bucket_counts))]
    for share in (0.5, 0.95, 0.99):
        rank = share * point.count - point.zero_count
        found_s = upper_s[int(np.searchsorted(np.cumsum(point.positive.bucket_counts), rank))]
        true_s = histograms.percentiles(histograms.count(durations_ns), [share])[0] / 1e9
        assert found_s / base / 1.02 <= true_s <= found_s * 1.02


def test_the_bounds_of_the_buckets_are_moved_by_less_than_a_fiftieth(receiver: Receiver) -> None:
    lower_ns, upper_ns = histograms.bounds_ns(100)
    push(
        receiver, lambda intake: intake.second(second(cell("cudaStreamSynchronize", [int((lower_ns + upper_ns) / 2)])))
    )
    [point] = receiver.metric("ingero.call.duration").exponential_histogram.data_points
    assert list(point.positive.bucket_counts) == [1]
    assert math.isclose(2 ** (point.positive.offset / 8), lower_ns / 1e9, rel_tol=0.02)


def test_gauges_of_a_gpu_have_the_conventional_names_and_units(receiver: Receiver) -> None:
    gpu = Gpu(index=1, uuid="GPU-x", name="H", memory_bytes=1, pci_bus_id="", max_sm_clock_mhz=None)
    sample = GpuSample(
        uuid="GPU-x", busy_percent=40, memory_busy_percent=None, memory_used_bytes=None, sm_clock_mhz=None,
        slowdowns=None, power_w=None, temperature_c=None, processes={},
    )  # fmt: skip
    from tests.unit.serve.test_metrics import SYSTEM  # noqa: PLC0415

    push(receiver, lambda intake: intake.second(second(system=SYSTEM, gpus=((gpu, sample),))))
    metric = receiver.metric("hw.gpu.utilization")
    [point] = metric.gauge.data_points
    assert (metric.unit, point.as_double, attributes(point)) == ("1", 0.4, {"hw.id": "1"})


def test_pushes_go_on_while_the_recording_does(receiver: Receiver) -> None:
    registry = Registry()
    Intake(registry).second(second())
    came = threading.Event()
    with Pushes(receiver.endpoint, registry, node="n", environ=NOWHERE, period_s=0.01):
        while len(receiver.requests) < 3 and not came.wait(0.01):
            pass
    assert len(receiver.requests) >= 3


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (503, b"", "HTTP status 503"),
        (302, b"", "HTTP status 302"),
        (
            200,
            ExportMetricsServiceResponse(
                partial_success={"rejected_data_points": 3, "error_message": "too old"}
            ).SerializeToString(),
            "3 values were refused: too old",
        ),
    ],
)
def test_a_push_that_is_not_taken_is_counted(receiver: Receiver, status: int, answer: bytes, reason: str) -> None:
    receiver.status, receiver.answer = status, answer
    pushes = push(receiver, quiet)
    assert pushes.failed == 1
    assert reason in pushes.last_error


def test_an_answer_that_is_no_message_is_taken_for_a_yes(receiver: Receiver) -> None:
    receiver.answer = b"OK\n"
    assert push(receiver, quiet).failed == 0


def test_a_receiver_that_is_not_there_is_counted() -> None:
    with receiving() as gone:
        pass
    pushes = push(gone, quiet)
    assert pushes.failed == 1
    assert "ConnectionRefusedError" in pushes.last_error


def test_a_failed_push_is_itself_a_metric_of_the_next(receiver: Receiver) -> None:
    registry = Registry()
    receiver.status = 500
    with Pushes(receiver.endpoint, registry, node="n", environ=NOWHERE, period_s=0.01) as pushes:
        while not pushes.failed:
            pass
        receiver.status = 200
    [point] = receiver.metric("ingero.metrics.failed_pushes").sum.data_points
    assert point.as_int >= 1


def test_headers_of_the_environment_are_sent(receiver: Receiver) -> None:
    push(receiver, quiet, environ={HEADERS_VARIABLE: "Authorization=Bearer%20abc, x-scope=team"})
    headers = receiver.requests[0][1]
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer abc", "team")


@pytest.mark.parametrize("text", ["novalue", "a=b%0d%0aevil: 1", "a b=c", "=x"])
def test_headers_that_cannot_be_sent_are_refused_at_once(receiver: Receiver, text: str) -> None:
    with pytest.raises(PushError, match="not a list of headers"):
        push(receiver, quiet, environ={HEADERS_VARIABLE: text})


def test_over_tls_the_receiver_must_be_known(tmp_path: Path) -> None:
    certificate = self_signed(["127.0.0.1"], now=datetime.now(timezone.utc))
    file = tmp_path / "ca.pem"
    file.write_bytes(certificate.certificate)
    with receiving(tls_context(certificate)) as receiver:
        behind_tls = replace(receiver.endpoint, scheme="https")
        stranger = push(receiver, quiet, behind_tls)
        known = push(receiver, quiet, behind_tls, environ={CERTIFICATE_VARIABLE: str(file)})
    assert "CERTIFICATE_VERIFY_FAILED" in stranger.last_error
    assert known.failed == 0
    assert len(receiver.requests) == 1


def test_a_certificate_that_is_not_there_is_an_error_at_once(receiver: Receiver) -> None:
    with pytest.raises(PushError, match="No such file"):
        push(receiver, quiet, environ={CERTIFICATE_VARIABLE: "/nowhere.pem"})


def test_receivers_without_exponential_histograms_get_a_bucket_per_octave(receiver: Receiver) -> None:
    durations_ns = np.random.default_rng(5).lognormal(11, 3, 5_000).astype(np.int64) + 1
    push(
        receiver,
        lambda intake: intake.second(second(cell("cudaStreamSynchronize", durations_ns.tolist()))),
        environ={HISTOGRAM_VARIABLE: "explicit_bucket_histogram"},
    )
    [point] = receiver.metric("ingero.call.duration").histogram.data_points
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert sum(point.bucket_counts) == point.count == 5_000
    below = [int(np.count_nonzero(durations_ns < bound * 1e9 * (1 - 1e-12))) for bound in point.explicit_bounds]
    assert np.cumsum(point.bucket_counts).tolist() == [*below, 5_000]


def test_a_kind_of_histograms_that_does_not_exist_is_refused(receiver: Receiver) -> None:
    with pytest.raises(PushError, match="'classic' is not supported") as error:
        push(receiver, quiet, environ={HISTOGRAM_VARIABLE: "classic"})
    assert "explicit_bucket_histogram" in error.value.hint


def test_the_name_of_the_node_becomes_prometheus_instance(receiver: Receiver) -> None:
    push(receiver, quiet)
    facts = attributes(receiver.requests[-1][2].resource_metrics[0].resource)
    assert facts["service.instance.id"] == "gpu-7"


def test_json_says_what_protobuf_says(receiver: Receiver) -> None:
    def fill(intake: Intake) -> None:
        intake.second(second(cell("cudaLaunchKernel", [5_000] * 7)))

    push(receiver, fill, environ={"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json", HISTOGRAM_VARIABLE: ""})
    assert receiver.requests[-1][1]["content-type"] == "application/json"
    metric = receiver.metric("ingero.calls")
    assert metric.sum.data_points[0].as_int == 7
    assert metric.sum.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE


def test_enumerations_are_numbers_in_json() -> None:
    registry = Registry()
    Intake(registry).second(second(cell("cudaLaunchKernel", [5_000])))
    text = as_json(as_request(registry.read(), node="n", began_ns=1, now_ns=2)).decode()
    assert '"aggregationTemporality": 2' in text
    assert "AGGREGATION_TEMPORALITY" not in text


def test_a_receiver_that_refuses_in_json_is_understood(receiver: Receiver) -> None:
    receiver.answer = b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}, "new": 1}'
    pushes = push(receiver, quiet, environ={"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert "3 values were refused: too old" in pushes.last_error


def test_bodies_are_compressed_where_that_is_said(receiver: Receiver) -> None:
    def fill(intake: Intake) -> None:
        intake.second(second(cell("cudaLaunchKernel", [5_000])))

    push(receiver, fill, environ={"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"})
    assert receiver.requests[-1][1]["content-encoding"] == "gzip"
    assert receiver.metric("ingero.calls")


@pytest.mark.parametrize("preference", ["delta", "Delta", "lowmemory"])
def test_delta_sums_are_those_since_the_last_push_that_was_taken(receiver: Receiver, preference: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": preference}
    registry = Registry()
    intake = Intake(registry)
    pushes = Pushes(receiver.endpoint, registry, node="n", environ=environ, period_s=HOURLY_S)
    seen = []
    for durations_ns, status in (([5_000] * 7, 200), ([5_000] * 2, 503), ([9_000] * 4, 200), ([], 200)):
        receiver.status = status
        intake.second(second(*([cell("cudaLaunchKernel", durations_ns)] if durations_ns else [])))
        pushes._push()
        metric = receiver.metric("ingero.calls").sum
        assert metric.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
        histogram = receiver.metric("ingero.call.duration").exponential_histogram
        assert histogram.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
        assert histogram.data_points[0].count == metric.data_points[0].as_int
        assert not histogram.data_points[0].HasField("max"), "it is known since the beginning only"
        seen.append((metric.data_points[0].as_int, metric.data_points[0].start_time_unix_nano))
    assert [value for value, _ in seen] == [7, 2, 6, 0], "what was not taken is part of the next"
    begins = [begin for _, begin in seen]
    assert begins[0] == registry.began_ns
    assert begins[0] < begins[1] == begins[2] < begins[3]


def test_the_resource_is_what_the_environment_says(receiver: Receiver) -> None:
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=gpu%20ops", "OTEL_SERVICE_NAME": "trainer"}
    push(receiver, quiet, environ=environ)
    facts = attributes(receiver.requests[-1][2].resource_metrics[0].resource)
    assert (facts["service.name"], facts["team"], facts["host.name"]) == ("trainer", "gpu ops", "gpu-7")


def test_grpc_is_refused_with_what_to_use_instead(receiver: Receiver) -> None:
    with pytest.raises(PushError, match="gRPC is not supported") as error:
        push(receiver, quiet, environ={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "http/protobuf" in error.value.hint
    assert "4318" in error.value.hint


def test_what_the_signal_says_wins_over_what_is_said_of_all(receiver: Receiver) -> None:
    environ = {HEADERS_VARIABLE: "a=1", "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "b=2"}
    push(receiver, quiet, environ=environ)
    headers = receiver.requests[-1][1]
    assert ("a" in headers, headers["b"]) == (False, "2")


@pytest.mark.parametrize("text", ["0", "-1", "5s", "9" * 20])
def test_times_are_milliseconds(receiver: Receiver, text: str) -> None:
    with pytest.raises(PushError, match="is not a time"):
        push(receiver, quiet, environ={"OTEL_METRIC_EXPORT_INTERVAL": text})
