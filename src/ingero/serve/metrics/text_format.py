"""Metrics in Prometheus's text format, version 0.0.4, which every scraper reads.

A histogram has one bucket per octave, with the recording's own bounds, 128 ns to 275 s: eight times as many would be
thousands of series. A duration of exactly a bound stands in the bucket above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ingero.serve.metrics.catalogue import Metric
from ingero.serve.metrics.registry import Family, HistogramSum, Labels
from ingero.store.histograms import BUCKETS, PER_OCTAVE, bounds_ns

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LAST_OF_OCTAVES = np.arange(0, BUCKETS - 1, PER_OCTAVE)  # bucket 0 ends at 128 ns, the next octave with bucket 8
_BOUNDS_S = tuple(repr(round(bounds_ns(int(bucket))[1]) / 1e9) for bucket in _LAST_OF_OCTAVES)


def as_text(families: Sequence[Family]) -> str:
    """One page of metrics."""
    return "".join(f"{line}\n" for family in families for line in _family(family))


def _family(family: Family) -> Iterator[str]:
    metric = family.metric
    name = metric.prometheus_name
    yield f"# HELP {name} {_escaped(metric.text)}"
    yield f"# TYPE {name} {metric.kind.value}"
    for labels, value in family.points:
        if isinstance(value, HistogramSum):
            yield from _histogram(metric, labels, value)
        else:
            yield f"{name}{_labels(metric, labels)} {_number(value)}"


def _histogram(metric: Metric, labels: Labels, value: HistogramSum) -> Iterator[str]:
    name = metric.prometheus_name
    cumulated = np.cumsum(value.counts)
    for bound, count in zip(_BOUNDS_S, cumulated[_LAST_OF_OCTAVES].tolist(), strict=True):
        yield f"{name}_bucket{_labels(metric, labels, le=bound)} {count}"
    yield f"{name}_bucket{_labels(metric, labels, le='+Inf')} {int(cumulated[-1])}"
    yield f"{name}_sum{_labels(metric, labels)} {_number(value.sum_ns / 1e9)}"
    yield f"{name}_count{_labels(metric, labels)} {int(cumulated[-1])}"


def _labels(metric: Metric, labels: Labels, **more: str) -> str:
    pairs = [*zip(metric.prometheus_labels, labels, strict=True), *more.items()]
    inside = ",".join(f'{name}="{_quoted(text)}"' for name, text in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN"
