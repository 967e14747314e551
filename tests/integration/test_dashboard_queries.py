"""A Prometheus with the example's configuration scrapes a recording with an incident: every panel has data.

The GPU is the simulated one, and so is NVML; what throttles it costs this machine nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingero.demo.faults import Fault, Workload
from ingero.demo.gpusim import build
from ingero.demo.workloads.program import Program
from tests.integration.test_metrics import address
from tests.integration.tracing import Tracer, tracing
from tests.prometheus_server import Prometheus, needs_prometheus, program, serving

pytestmark = [pytest.mark.integration, needs_prometheus]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DASHBOARD = json.loads((EXAMPLES / "grafana/ingero.json").read_text())
VARIABLES = {"$node": ".*", "$op": ".*", "$__rate_interval": "1m", "$__range": "5m"}
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
HEALTHY_SECONDS, INCIDENT_SECONDS = 6, 40  # the incident ends as soon as it was found
CALLS = "sum(ingero_calls_total)"


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The server, when the recording has ended; the recording, and the last page that it gave out. Times: unix s."""

    prometheus: Prometheus
    database: Path
    causes_by_then: set[str]  # that the agent said until then
    causes: set[str]
    page: str
    during_s: float  # the incident goes on
    end_s: float  # all calls that were recorded have been scraped


def filled(query: str) -> str:
    """A query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def configuration(folder: Path, target: str) -> Path:
    """The example's, for this target and once a second."""
    settings = yaml.safe_load((EXAMPLES / "prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(EXAMPLES / "prometheus" / name) for name in settings["rule_files"]]
    settings["scrape_configs"] = [one for one in settings["scrape_configs"] if one["job_name"] == "ingero"]
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(settings))
    return path


def stall(tracer: Tracer, workload: Workload) -> float:
    """The GPU is throttled until the agent has said so and its loss was seen to grow; answers when it had been."""
    for _ in range(HEALTHY_SECONDS):
        tracer.wait_for("second")
    with Fault("gpu_throttle").apply(workload):
        for _ in range(INCIDENT_SECONDS):
            if tracer.wait_for_any(("second", "incident_opened"))["type"] == "incident_opened":
                break
        for _ in range(HEALTHY_SECONDS):
            tracer.wait_for("second")
        return time.time()


def causes_said(tracer: Tracer) -> set[str]:
    """Of the incidents with lost time that the agent has said so far; another test's group may run out of memory."""
    incidents = (one["incident"] for one in tracer.messages if one["type"] == "incident_opened")
    return {one["cause"] for one in incidents if one["impact"]["lost_ns"]}


def last_page(tracer: Tracer, url: str) -> str:
    """What the agent gives out when the trainer, who is stopped, has made all calls that there will be."""
    while any(tracer.wait_for("second")["calls"].values()):
        pass
    tracer.wait_for("second")
    with urllib.request.urlopen(url, timeout=30) as answer:
        page: str = answer.read().decode()
    return page


def scraped(prometheus: Prometheus, tracer: Tracer, page: str) -> float:
    """Waits until the server has the calls of this page; answers when."""
    calls = sum(float(value) for value in re.findall(r"^ingero_calls_total\S* (\S+)$", page, re.MULTILINE))
    while prometheus.query(CALLS)[0][1] < calls:
        tracer.wait_for("second")
    return time.time()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    knobs, host_knobs = folder / "gpu.knobs", folder / "host.knobs"
    device = build.environment(build.build(), ctl=knobs, sched="block")
    arguments = ("--seconds", 120, "--workers", 1, "--knob", host_knobs)
    options = ("--prometheus", "127.0.0.1:0", "--metrics-compat")
    with ExitStack() as stack:
        trainer = stack.enter_context(Program.module("train", *arguments, environment={**os.environ, **device}))
        trainer.wait_for("ready")
        with tracing(folder, pids=[trainer.pid], options=options, environment=device) as tracer:
            url = address(tracer)
            prometheus = stack.enter_context(serving(configuration(folder, url.split("/")[2])))
            during_s = stall(tracer, Workload(pid=trainer.pid, knobs=knobs, host_knobs=host_knobs))
            causes_by_then = causes_said(tracer)
            os.kill(trainer.pid, signal.SIGSTOP)
            stack.callback(os.kill, trainer.pid, signal.SIGCONT)
            page = last_page(tracer, url)
            end_s = scraped(prometheus, tracer, page)
        yield Watched(
            prometheus=prometheus,
            database=tracer.database,
            causes_by_then=causes_by_then,
            causes=causes_said(tracer),
            page=page,
            during_s=during_s,
            end_s=end_s,
        )


@pytest.mark.parametrize("query", QUERIES)
def test_a_panel_of_the_dashboard_has_something_to_show(watched: Watched, query: str) -> None:
    values = [value for _, value in watched.prometheus.query(filled(query), watched.during_s)]
    assert [value for value in values if math.isfinite(value)]


@pytest.mark.parametrize("variable", DASHBOARD["templating"]["list"][1:], ids=lambda one: one["name"])
def test_a_variable_of_the_dashboard_has_values(watched: Watched, variable: dict[str, Any]) -> None:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
    assert found is not None
    values = watched.prometheus.label_values(found[2], filled(found[1]))
    assert {"node": "127.0.0.1", "op": "cudaLaunchKernel"}[variable["name"]] in values


def test_lost_time_has_the_causes_that_the_agent_said_and_no_others(watched: Watched) -> None:
    found = watched.prometheus.query("ingero_lost_time_seconds_total", watched.end_s)
    shown = {labels["cause"]: lost_s for labels, lost_s in found}
    assert watched.causes_by_then
    assert watched.causes_by_then <= {cause for cause, lost_s in shown.items() if lost_s} <= watched.causes
    assert (
        len(shown) > 30
    )  # those of which there was nothing are 0 from the beginning, so that rates see the first loss


def test_the_p99_of_each_call_is_explains_within_a_bucket(watched: Watched) -> None:
    command = [sys.executable, "-m", "ingero.cli.main", "explain", "--db", str(watched.database), "--per-process"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    [process] = [one for one in json.loads(done.stdout)["per_process"] if one["ops"]]
    explained = {op["name"]: op["p99_ns"] / 1e9 for op in process["ops"] if op["p99_ns"]}
    query = "histogram_quantile(0.99, sum by (op, le) (ingero_call_duration_seconds_bucket))"
    shown = {labels["op"]: value for labels, value in watched.prometheus.query(query, watched.end_s)}
    assert len(explained) >= 3
    assert [op for op, p99_s in explained.items() if not 0.5 <= shown[op] / p99_s <= 2] == []


def test_promtool_finds_nothing_in_the_metrics(watched: Watched) -> None:
    new = re.sub(r"^(# \w+ )?(gpu_|ingero_(ringbuf|trace_db)).*\n", "", watched.page, flags=re.MULTILINE)
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=new, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
