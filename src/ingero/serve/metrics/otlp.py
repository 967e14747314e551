"""Metrics as OTLP has them: cumulative sums, gauges and histograms, in the official messages.

A bucket of the recording becomes the bucket of scale 3 whose bounds are nearest. The recording's bounds are powers of
2^(1/8) in ns, OTLP's the same in seconds, and 10^9 is no power of 2^(1/8): so every bound is 1.6 % higher than it was
(docs/adr/0035-metrics.md). What took less than 128 ns is in the zero bucket. Explicit buckets, for receivers that know
no exponential ones, are exact (docs/adr/0036-dashboards-and-buckets.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
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
from ingero.serve.metrics.registry import Family, HistogramSum, Labels
from ingero.store.histograms import FIRST_OCTAVE, bounds_ns

SCALE = 3
_ZERO_S = 2**FIRST_OCTAVE / 1e9
_INDEX_OF_BUCKET_1 = round(np.log2(bounds_ns(1)[0] / 1e9) * 2**SCALE)
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def as_request(
    families: Sequence[Family], *, node: str, began_ns: int, now_ns: int, is_explicit: bool = False
) -> ExportMetricsServiceRequest:
    """What to send. node: name of this machine. Times: unix ns. is_explicit: histograms with a bucket per octave."""
    metrics = [_message(family, began_ns, now_ns, is_explicit=is_explicit) for family in families]
    # Prometheus makes its labels job and instance of the service's name and instance
    facts = {"service.name": "ingero", "service.version": __version__, "service.instance.id": node, "host.name": node}
    resource = Resource(attributes=_attributes(tuple(facts), tuple(facts.values())))
    scope = ScopeMetrics(scope=InstrumentationScope(name="ingero", version=__version__), metrics=metrics)
    return ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope])])


def _message(family: Family, began_ns: int, now_ns: int, *, is_explicit: bool) -> Message:
    metric = family.metric
    message = Message(name=metric.name, description=metric.text, unit=metric.unit)
    if metric.kind is Kind.HISTOGRAM:
        sums = [(labels, value) for labels, value in family.points if isinstance(value, HistogramSum)]
        if is_explicit:
            points = [_octaves(metric, labels, value, began_ns, now_ns) for labels, value in sums]
            message.histogram.CopyFrom(Histogram(data_points=points, aggregation_temporality=_CUMULATIVE))
            return message
        exponential = [_histogram(metric, labels, value, began_ns, now_ns) for labels, value in sums]
        message.exponential_histogram.CopyFrom(
            ExponentialHistogram(data_points=exponential, aggregation_temporality=_CUMULATIVE)
        )
        return message
    is_counter = metric.kind is Kind.COUNTER
    numbers = [
        _number(metric, labels, value, began_ns if is_counter else 0, now_ns)
        for labels, value in family.points
        if not isinstance(value, HistogramSum)
    ]
    if is_counter:
        message.sum.CopyFrom(Sum(data_points=numbers, aggregation_temporality=_CUMULATIVE, is_monotonic=True))
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


def _histogram(
    metric: Metric, labels: Labels, value: HistogramSum, began_ns: int, now_ns: int
) -> ExponentialHistogramDataPoint:
    point = ExponentialHistogramDataPoint(
        attributes=_attributes(metric.labels, labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=int(value.counts.sum()),
        sum=value.sum_ns / 1e9,
        scale=SCALE,
        zero_count=int(value.counts[0]),
        zero_threshold=_ZERO_S,
        max=value.max_ns / 1e9,
    )
    filled = np.flatnonzero(value.counts[1:])
    if len(filled):
        first, last = int(filled[0]) + 1, int(filled[-1]) + 1
        point.positive.offset = first - 1 + _INDEX_OF_BUCKET_1
        point.positive.bucket_counts.extend(value.counts[first : last + 1].tolist())
    return point


def _octaves(metric: Metric, labels: Labels, value: HistogramSum, began_ns: int, now_ns: int) -> HistogramDataPoint:
    counts = cumulated(value)
    return HistogramDataPoint(
        attributes=_attributes(metric.labels, labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=value.sum_ns / 1e9,
        explicit_bounds=BOUNDS_S,
        bucket_counts=[counts[0], *(upper - lower for lower, upper in itertools.pairwise(counts))],
        max=value.max_ns / 1e9,
    )


def _attributes(names: Sequence[str], values: Sequence[str]) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=AnyValue(string_value=visible(value)))
        for name, value in zip(names, values, strict=True)
    ]
