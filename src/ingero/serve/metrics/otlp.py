"""Encodes metrics as OTLP: sums (cumulative, or of the time since the last push), gauges and histograms.

A bucket of the recording becomes the bucket of scale 3 whose bounds are nearest. The recording's bounds are powers of
2^(1/8) in ns, OTLP's the same in seconds, and 10^9 is no power of 2^(1/8): so every bound is 1.6% higher than it was
(docs/adr/0035-metrics.md). What took less than 128 ns is in the zero bucket. Explicit buckets, for receivers that know
no exponential ones, are exact (docs/adr/0036-dashboards-and-buckets.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Message
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ingero import __version__
from ingero.foreign_text import visible
from ingero.serve.metrics.catalogue import Kind, Metric
from ingero.serve.metrics.octaves import BOUNDS_S, cumulated
from ingero.serve.metrics.registry import Family, HistogramSum, Labels, Value
from ingero.store.histograms import FIRST_OCTAVE, bounds_ns

SCALE = 3
_ZERO_S = 2**FIRST_OCTAVE / 1e9
_INDEX_OF_BUCKET_1 = round(np.log2(bounds_ns(1)[0] / 1e9) * 2**SCALE)
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA


def as_request(
    families: Sequence[Family],
    *,
    node: str,
    began_ns: int,
    now_ns: int,
    is_explicit: bool = False,
    is_delta: bool = False,
    attributes: Mapping[str, str] | None = None,
) -> ExportMetricsServiceRequest:
    """The request to send. node: name of this host. Times: Unix ns. attributes: of the resource; they override ours.

    is_explicit: histograms with a bucket per octave. is_delta: the sums are those since began_ns (`Deltas`).
    """
    form = _Form(
        began_ns=began_ns, now_ns=now_ns, is_explicit=is_explicit, temporality=_DELTA if is_delta else _CUMULATIVE
    )
    metrics = [_message(family, form) for family in families]
    # Prometheus makes its labels job and instance of the service's name and instance
    facts = {"service.name": "ingero", "service.version": __version__, "service.instance.id": node, "host.name": node}
    facts |= attributes or {}
    resource = Resource(attributes=_attributes(tuple(facts), tuple(facts.values())))
    scope = ScopeMetrics(scope=InstrumentationScope(name="ingero", version=__version__), metrics=metrics)
    return ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope])])


def as_json(request: ExportMetricsServiceRequest) -> bytes:
    """A request in OTLP's JSON: numbers for enumerations, and no ids that would have to be hexadecimal."""
    return MessageToJson(request, indent=None, use_integers_for_enums=True).encode()


class Deltas:
    """Sums since the last successful push. One thread at a time."""

    def __init__(self, began_ns: int) -> None:
        self.since_ns = began_ns
        self._taken: dict[tuple[Metric, Labels], Value] = {}
        self._sent: dict[tuple[Metric, Labels], Value] = {}

    def of(self, families: Sequence[Family]) -> list[Family]:
        """Growth since the last successful push; gauges unchanged."""
        self._sent = {
            (family.metric, labels): value
            for family in families
            if family.metric.kind is not Kind.GAUGE
            for labels, value in family.points
        }
        return [
            Family(
                family.metric, [(labels, self._grown(family.metric, labels, value)) for labels, value in family.points]
            )
            for family in families
        ]

    def taken(self, now_ns: int) -> None:
        """Note that the receiver took a push; the next one begins here. A failed one is part of the next."""
        self._taken, self.since_ns = self._sent, now_ns

    def _grown(self, metric: Metric, labels: Labels, value: Value) -> Value:
        before = self._taken.get((metric, labels))
        if before is None:
            return value
        if isinstance(value, HistogramSum) and isinstance(before, HistogramSum):
            return HistogramSum(value.counts - before.counts, value.sum_ns - before.sum_ns, value.max_ns)
        assert not isinstance(value, HistogramSum)
        assert not isinstance(before, HistogramSum)
        return value - before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    began_ns: int
    now_ns: int
    is_explicit: bool
    temporality: AggregationTemporality.ValueType


def _message(family: Family, form: _Form) -> Message:
    metric = family.metric
    message = Message(name=metric.name, description=metric.text, unit=metric.unit)
    if metric.kind is Kind.HISTOGRAM:
        sums = [(labels, value) for labels, value in family.points if isinstance(value, HistogramSum)]
        if form.is_explicit:
            points = [_octaves(metric, labels, value, form) for labels, value in sums]
            message.histogram.CopyFrom(Histogram(data_points=points, aggregation_temporality=form.temporality))
            return message
        exponential = [_histogram(metric, labels, value, form) for labels, value in sums]
        message.exponential_histogram.CopyFrom(
            ExponentialHistogram(data_points=exponential, aggregation_temporality=form.temporality)
        )
        return message
    is_counter = metric.kind is Kind.COUNTER
    numbers = [
        _number(metric, labels, value, form.began_ns if is_counter else 0, form.now_ns)
        for labels, value in family.points
        if not isinstance(value, HistogramSum)
    ]
    if is_counter:
        message.sum.CopyFrom(Sum(data_points=numbers, aggregation_temporality=form.temporality, is_monotonic=True))
    else:
        message.gauge.CopyFrom(Gauge(data_points=numbers))
    return message


def _number(metric: Metric, labels: Labels, value: float, began_ns: int, now_ns: int) -> NumberDataPoint:
    point = NumberDataPoint(
        attributes=_attributes(metric.labels, labels), start_time_unix_nano=began_ns, time_unix_nano=now_ns
    )
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    return point


def _histogram(metric: Metric, labels: Labels, value: HistogramSum, form: _Form) -> ExponentialHistogramDataPoint:
    point = ExponentialHistogramDataPoint(
        attributes=_attributes(metric.labels, labels),
        start_time_unix_nano=form.began_ns,
        time_unix_nano=form.now_ns,
        count=int(value.counts.sum()),
        sum=value.sum_ns / 1e9,
        scale=SCALE,
        zero_count=int(value.counts[0]),
        zero_threshold=_ZERO_S,
        max=_largest_s(value, form),
    )
    filled = np.flatnonzero(value.counts[1:])
    if len(filled):
        first, last = int(filled[0]) + 1, int(filled[-1]) + 1
        point.positive.offset = first - 1 + _INDEX_OF_BUCKET_1
        point.positive.bucket_counts.extend(value.counts[first : last + 1].tolist())
    return point


def _octaves(metric: Metric, labels: Labels, value: HistogramSum, form: _Form) -> HistogramDataPoint:
    counts = cumulated(value)
    return HistogramDataPoint(
        attributes=_attributes(metric.labels, labels),
        start_time_unix_nano=form.began_ns,
        time_unix_nano=form.now_ns,
        count=counts[-1],
        sum=value.sum_ns / 1e9,
        explicit_bounds=BOUNDS_S,
        bucket_counts=[counts[0], *(upper - lower for lower, upper in itertools.pairwise(counts))],
        max=_largest_s(value, form),
    )


def _largest_s(value: HistogramSum, form: _Form) -> float | None:
    """The largest duration, in s; not for deltas: it is known since the beginning, not since the last push."""
    return value.max_ns / 1e9 if form.temporality == _CUMULATIVE else None


def _attributes(names: Sequence[str], values: Sequence[str]) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=AnyValue(string_value=visible(value)))
        for name, value in zip(names, values, strict=True)
    ]
