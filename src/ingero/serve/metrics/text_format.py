"""Metrics in Prometheus's text format, version 0.0.4, which every scraper reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from ingero.foreign_text import visible
from ingero.serve.metrics.catalogue import Metric
from ingero.serve.metrics.octaves import BOUNDS_S, cumulated
from ingero.serve.metrics.registry import Family, HistogramSum, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (*(repr(bound) for bound in BOUNDS_S), "+Inf")


def as_text(families: Sequence[Family]) -> str:
    """One page of metrics. All but numbers is formatted once: labels are of closed sets (docs/adr/0035-metrics.md)."""
    return "".join(text for family in families for text in _family(family))


def _family(family: Family) -> Iterator[str]:
    metric = family.metric
    yield _head(metric)
    for labels, value in family.points:
        if isinstance(value, HistogramSum):
            counts = cumulated(value)
            yield _histogram_form(metric, labels) % (*counts, _number(value.sum_ns / 1e9), counts[-1])
        else:
            yield f"{_series(metric, labels)} {_number(value)}\n"


@cache
def _head(metric: Metric) -> str:
    name = metric.prometheus_name
    return f"# HELP {name} {_escaped(metric.text)}\n# TYPE {name} {metric.kind.value}\n"


@cache
def _series(metric: Metric, labels: Labels) -> str:
    return f"{metric.prometheus_name}{_labels(metric, labels)}"


@cache
def _histogram_form(metric: Metric, labels: Labels) -> str:
    """The lines of a histogram, with places for the count of each bucket, the sum and the count."""
    name = metric.prometheus_name
    text = _labels(metric, labels).replace("%", "%%")
    bucket = f"{name}_bucket{text[:-1]},le=" if text else f"{name}_bucket{{le="
    lines = [f'{bucket}"{bound}"}} %d\n' for bound in _BOUNDS]
    return "".join([*lines, f"{name}_sum{text} %s\n{name}_count{text} %d\n"])


def _labels(metric: Metric, labels: Labels) -> str:
    pairs = zip(metric.prometheus_labels, labels, strict=True)
    inside = ",".join(f'{name}="{_quoted(text)}"' for name, text in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(visible(text)).replace('"', r"\"")


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN"
