"""Metrics in Prometheus's text format, version 0.0.4, which every scraper reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ingero.serve.metrics.catalogue import Metric
from ingero.serve.metrics.octaves import BOUNDS_S, cumulated
from ingero.serve.metrics.registry import Family, HistogramSum, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (*(repr(bound) for bound in BOUNDS_S), "+Inf")


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
    text = _labels(metric, labels)
    bucket = f"{name}_bucket{text[:-1]},le=" if text else f"{name}_bucket{{le="
    counts = cumulated(value)
    for bound, count in zip(_BOUNDS, counts, strict=True):
        yield f'{bucket}"{bound}"}} {count}'
    yield f"{name}_sum{text} {_number(value.sum_ns / 1e9)}"
    yield f"{name}_count{text} {counts[-1]}"


def _labels(metric: Metric, labels: Labels) -> str:
    pairs = zip(metric.prometheus_labels, labels, strict=True)
    inside = ",".join(f'{name}="{_quoted(text)}"' for name, text in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN"
