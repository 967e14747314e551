"""The examples for Grafana, Prometheus and the OpenTelemetry collector name what there is; promtool accepts them.

That their queries find something is tested with a real recording (integration/test_dashboard_queries.py).
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingero.serve.http.addresses import Address
from ingero.serve.metrics.catalogue import METRICS, Kind
from ingero.serve.otlp_endpoint import endpoint_of, parse_endpoint
from tests.prometheus_server import needs_prometheus, program

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana/ingero.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((EXAMPLES / "prometheus/ingero.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
SUMS = {rule["record"] for rule in RULES if "record" in rule}
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
    *(variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"),
    *(rule["expr"] for rule in RULES),
]
GIVEN_BY_PROMETHEUS = {"instance", "job", "le"}


def series() -> dict[str, set[str]]:
    """Names that Prometheus stores, and their labels."""
    found = {}
    for metric in METRICS:
        name = metric.prometheus_name
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        found |= {name + suffix: {*metric.prometheus_labels, *GIVEN_BY_PROMETHEUS} for suffix in suffixes}
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    known = series()
    names = set(re.findall(r"\b(?:ingero|hw|system)_\w+", re.sub(r"[\w:]*:[\w:]+", "", query)))
    sums = set(re.findall(r"[\w:]*:[\w:]+", query))
    assert names | sums
    assert sums <= SUMS
    assert names <= set(known)
    for name, matchers in re.findall(r"\b(\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers)) <= known[name]
    grouped = {label for text in re.findall(r"\bby \(([^)]*)\)", query) for label in text.split(", ")}
    assert grouped <= GIVEN_BY_PROMETHEUS.union(*(known[name] for name in names), {"cause"} if sums else set())


def test_no_panel_lies_over_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "ingero.rules.yml"),
        ("test", "rules", "ingero.rules.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], cwd=EXAMPLES / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) >= 3
    assert all(
        {"summary", "description"} <= rule["annotations"].keys() and rule["labels"]["severity"] for rule in alerts
    )


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = (EXAMPLES / "prometheus/ingero.rules.test.yml").read_text()
    assert [rule["alert"] for rule in RULES if "alert" in rule and rule["alert"] not in cases] == []


def test_the_collector_takes_pushes_of_this_machine_and_prometheus_scrapes_it() -> None:
    collector = yaml.safe_load((EXAMPLES / "otel/collector.yaml").read_text())
    prometheus = yaml.safe_load((EXAMPLES / "prometheus/prometheus.yml").read_text())
    pipeline = collector["service"]["pipelines"]["metrics"]
    assert set(pipeline["receivers"]) == set(collector["receivers"])
    assert set(pipeline["exporters"]) == set(collector["exporters"])
    host, _, port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].partition(":")
    assert Address(host, int(port)).is_loopback
    targets = [
        target for job in prometheus["scrape_configs"] for one in job["static_configs"] for target in one["targets"]
    ]
    assert collector["exporters"]["prometheus"]["endpoint"] in targets


def test_the_page_about_these_examples_names_each_file() -> None:
    page = (EXAMPLES / "observability.md").read_text()
    folders = ("grafana", "prometheus", "otel")
    files = [path.relative_to(EXAMPLES).as_posix() for folder in folders for path in (EXAMPLES / folder).iterdir()]
    assert [name for name in files if f"]({name})" not in page] == []


def test_the_other_receivers_listen_where_ingero_is_told_to_push() -> None:
    datadog = yaml.safe_load((EXAMPLES / "otel/datadog.yaml").read_text())
    assert datadog["otlp_config"]["receiver"]["protocols"] == {"http": {"endpoint": "127.0.0.1:4318"}}
    alloy = (EXAMPLES / "otel/alloy.alloy").read_text()
    assert 'endpoint = "127.0.0.1:4318"' in alloy
    for wired in re.findall(r"\[(\S+)\.(?:input|receiver)\]", alloy):
        component, _, label = wired.rpartition(".")
        assert f'{component} "{label}" {{' in alloy


def test_each_receiver_of_the_recipes_is_one() -> None:
    recipes = (EXAMPLES / "observability.md").read_text()
    named = [(text, "") for text in re.findall(r"--otlp (\S+)", recipes)]
    named += [(url, variable) for variable, url in re.findall(r"(OTEL_EXPORTER_OTLP_\w*ENDPOINT)=(\S+)", recipes)]
    assert len(named) >= 6
    for text, variable in named:
        found = endpoint_of(None, {variable: text}) if variable else endpoint_of(parse_endpoint(text.rstrip("`")), {})
        assert found
        assert found.path.endswith("/v1/metrics")
