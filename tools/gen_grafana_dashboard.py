"""Writes examples/grafana/ingero.json, a dashboard over the metrics; with --check, says whether it is up to date."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated import write_or_check

from ingero.serve.metrics import catalogue
from ingero.serve.metrics.catalogue import Metric

DASHBOARD = Path(__file__).resolve().parent.parent / "examples" / "grafana" / "ingero.json"
_COLUMNS, _HEIGHT = 24, 8  # Grafana's grid; the height of a panel
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NODE, _OP = 'instance=~"$node"', 'op=~"$op"'
_RUN_OR_SLEEP, _KEPT_OFF = 'state=~"run|sleep"', 'state!~"run|sleep"'
# the other counters say what was repaired or could not be told
_LOST, _COUNTS = 'counter=~"rows_lost_.*|.*_(full|exhausted|failed|overflow)"', 'counter!~".*_ns"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. queries: PromQL by the legend of its series. unit: Grafana's name for it. columns: of 24."""

    title: str
    text: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    columns: int = 12
    is_stacked: bool = False


def _of(metric: Metric, *matchers: str) -> str:
    inside = ",".join((_NODE, *matchers))
    return f"{metric.prometheus_name}{{{inside}}}"


def _rate(metric: Metric, *matchers: str) -> str:
    return f"rate({_of(metric, *matchers)}[$__rate_interval])"


def _quantile(share: float) -> str:
    buckets = f"{catalogue.CALL_DURATION.prometheus_name}_bucket{{{_NODE},{_OP}}}"
    return f"histogram_quantile({share}, sum by (le, op) (rate({buckets}[$__rate_interval]))) > 0"


_GPU = "{{instance}} GPU {{hw_id}}"
_COARSE = "Within a factor of two; `ingero explain` is exact to 9%."
ROWS: dict[str, Sequence[Panel]] = {
    "Verdict": (
        Panel(
            title="Ongoing incidents",
            text="Without an agent there is no data; 0 means that one looks and finds nothing.",
            queries={
                "{{instance}}": f"sum by (instance) ({_of(catalogue.ACTIVE_INCIDENTS)}) "
                f"or 0 * sum by (instance) ({_of(catalogue.TRACED_PROCESSES)})"
            },
            kind="stat",
            columns=6,
        ),
        Panel(
            title="Time lost now",
            text="Share of the time of each incident's worst affected process. "
            "Two affected processes at a time can lose more than 100%.",
            queries={"{{instance}}": f"sum by (instance) ({_rate(catalogue.LOST_TIME)})"},
            unit="percentunit",
            kind="stat",
            columns=6,
        ),
        Panel(
            title="Lost in the shown time, by cause",
            text="What is not explained has the cause `unexplained`. See docs/detections.md for the causes.",
            queries={"{{cause}}": f"sort_desc(sum by (cause) (increase({_of(catalogue.LOST_TIME)}[$__range])) > 0)"},
            unit="s",
            kind="bargauge",
        ),
        Panel(
            title="Lost time by cause",
            text="End to end, of each incident's worst affected process: a share of its time.",
            queries={"{{cause}}": f"sum by (cause) ({_rate(catalogue.LOST_TIME)}) > 0"},
            unit="percentunit",
            is_stacked=True,
        ),
        Panel(
            title="Ongoing incidents, by cause",
            text="For culprit, line and evidence: `ingero explain` on the node.",
            queries={"{{cause}} ({{severity}})": f"sum by (cause, severity) ({_of(catalogue.ACTIVE_INCIDENTS)})"},
            is_stacked=True,
        ),
    ),
    "Steps": (
        Panel(
            title="Steps and GPU syncs per second",
            text="Steps are what a program's calls repeat; of one without steps its GPU syncs are what is known.",
            queries={
                "steps, {{instance}}": f"sum by (instance) ({_rate(catalogue.STEPS)})",
                "GPU syncs, {{instance}}": f"sum by (instance) ({_rate(catalogue.SYNCS)})",
            },
            unit="ops",
        ),
        Panel(
            title="Mean step, by part",
            text="The host's own time, and what it was blocked for the GPU.",
            queries={
                "{{part}}": f"sum by (part) ({_rate(catalogue.STEP_TIME)}) / ignoring (part) group_left "
                f"sum({_rate(catalogue.STEPS)})"
            },
            unit="s",
            is_stacked=True,
        ),
        Panel(
            title="Mean sync interval, by part",
            text="GPU idle (nothing queued), GPU busy (work queued or running), sync return delay.",
            queries={
                "{{part}}": f"sum by (part) ({_rate(catalogue.SYNC_TIME)}) / ignoring (part) group_left "
                f"sum({_rate(catalogue.SYNCS)})"
            },
            unit="s",
            is_stacked=True,
        ),
    ),
    "Calls": (
        Panel(title="Call duration, p50", text=_COARSE, queries={"{{op}}": _quantile(0.5)}, unit="s"),
        Panel(title="Call duration, p99", text=_COARSE, queries={"{{op}}": _quantile(0.99)}, unit="s"),
        Panel(
            title="Calls per second",
            text="Outermost calls that returned.",
            queries={"{{op}}": f"sum by (op) ({_rate(catalogue.CALLS, _OP)})"},
            unit="ops",
            columns=8,
        ),
        Panel(
            title="Errors per second",
            text="Outermost calls that returned an error.",
            queries={"{{op}}": f"sum by (op) ({_rate(catalogue.CALL_ERRORS, _OP)})"},
            unit="ops",
            columns=8,
        ),
        Panel(
            title="Bytes copied, allocated or sent",
            text="By calls that have a size.",
            queries={"{{op}}": f"sum by (op) ({_rate(catalogue.CALL_BYTES, _OP)}) > 0"},
            unit="Bps",
            columns=8,
        ),
    ),
    "GPU": (
        Panel(
            title="Utilization",
            text="Share of the time in which any kernel ran (NVML).",
            queries={_GPU: _of(catalogue.GPU_UTILIZATION)},
            unit="percentunit",
        ),
        Panel(
            title="Memory",
            text="Of all processes (NVML).",
            queries={
                f"{_GPU} used": _of(catalogue.GPU_MEMORY_USAGE),
                f"{_GPU} installed": _of(catalogue.GPU_MEMORY_LIMIT),
            },
            unit="bytes",
        ),
        Panel(
            title="Clock of the multiprocessors",
            text="NVML.",
            queries={_GPU: _of(catalogue.GPU_CLOCK)},
            unit="hertz",
            columns=6,
        ),
        Panel(
            title="What keeps the clocks down",
            text="1 while it does (NVML).",
            queries={f"{_GPU}: {{{{reason}}}}": _of(catalogue.GPU_SLOWDOWN)},
            columns=6,
        ),
        Panel(title="Power", text="NVML.", queries={_GPU: _of(catalogue.GPU_POWER)}, unit="watt", columns=6),
        Panel(
            title="Temperature", text="NVML.", queries={_GPU: _of(catalogue.GPU_TEMPERATURE)}, unit="celsius", columns=6
        ),
    ),
    "Threads": (
        Panel(
            title="Off the CPU, by state",
            text="Threads of the traced processes on average: runnable, throttled, I/O wait ...",
            queries={"{{state}}": f"sum by (state) ({_rate(catalogue.THREAD_TIME, _KEPT_OFF)})"},
            is_stacked=True,
        ),
        Panel(
            title="On a CPU and sleeping",
            text="Threads of the traced processes on average.",
            queries={"{{state}}": f"sum by (state) ({_rate(catalogue.THREAD_TIME, _RUN_OR_SLEEP)})"},
        ),
        Panel(
            title="Context switches per second",
            text="Context switches of the traced threads, and the involuntary ones of them.",
            queries={
                "all": f"sum({_rate(catalogue.SWITCHES)})",
                "involuntary": f"sum({_rate(catalogue.PREEMPTIONS)})",
            },
            unit="ops",
        ),
        Panel(
            title="Calls in flight for over a second",
            text="A hang shows here before it is an incident.",
            queries={"{{instance}}": _of(catalogue.CALLS_IN_FLIGHT)},
        ),
    ),
    "Host": (
        Panel(
            title="Pressure",
            text="Share of the time in which some or all tasks waited for a resource (PSI).",
            queries={
                "{{instance}} {{resource}} {{share}}": _rate(catalogue.PRESSURE),
            },
            unit="percentunit",
        ),
        Panel(
            title="CPU and memory in use",
            text="Of the whole host.",
            queries={
                "{{instance}} CPU": _of(catalogue.CPU_UTILIZATION),
                "{{instance}} memory": _of(catalogue.MEMORY_UTILIZATION),
            },
            unit="percentunit",
        ),
        Panel(
            title="Host events per second",
            text="Page faults, disk, network and processes: of the traced processes, and of all others.",
            queries={"{{op}}, {{scope}}": f"sum by (op, scope) ({_rate(catalogue.HOST_EVENTS)}) > 0"},
            unit="ops",
        ),
        Panel(
            title="Load and swap",
            text="Tasks running or in uninterruptible sleep; swap in use, in GiB.",
            queries={
                "{{instance}} load": _of(catalogue.LOAD_1M),
                "{{instance}} swap GiB": f"{_of(catalogue.SWAP_USED)} / 2^30",
            },
        ),
    ),
    "Ingero itself": (
        Panel(
            title="Records dropped since the recording began",
            text="Not 0: what is shown above may miss something. `ingero explain` says what.",
            queries={"{{instance}}": f"sum by (instance) ({_of(catalogue.DROPS, _LOST)})"},
            kind="stat",
            columns=6,
        ),
        Panel(
            title="Drop counters that moved most",
            text="Dropped, corrected or not known; without those that count nanoseconds.",
            queries={
                "{{counter}}": "topk(5, sum by (counter) "
                f"(increase({_of(catalogue.DROPS, _COUNTS)}[$__rate_interval])))"
            },
            columns=6,
        ),
        Panel(
            title="Overhead of the traced threads",
            text="Of the busiest traced thread. Kept below --max-overhead, 2% if nothing else is asked.",
            queries={"{{instance}}": _of(catalogue.OVERHEAD)},
            unit="percentunit",
            columns=6,
        ),
        Panel(
            title="CPU of the agent",
            text="Of one core; --max-cpu, 5% if nothing else is asked.",
            queries={"{{instance}}": _rate(catalogue.AGENT_CPU)},
            unit="percentunit",
            columns=6,
        ),
        Panel(
            title="Memory of the agent, size of its recording",
            text="Largest resident memory so far; database with write-ahead log.",
            queries={
                "{{instance}} memory": _of(catalogue.AGENT_MEMORY),
                "{{instance}} recording": _of(catalogue.RECORDING_SIZE),
            },
            unit="bytes",
            columns=8,
        ),
        Panel(
            title="Level of the overhead limiter",
            text="0: everything is traced; each level leaves something out to keep the overhead down.",
            queries={"{{instance}}": _of(catalogue.LEVEL)},
            columns=8,
        ),
        Panel(
            title="What these metrics miss",
            text="Seconds not summed and scrapes refused since the recording began.",
            queries={
                "{{instance}} dropped": _of(catalogue.DROPPED),
                "{{instance}} refused scrapes": _of(catalogue.REFUSED_SCRAPES),
            },
            columns=8,
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _variable("node", "Node", f"label_values({catalogue.TRACED_PROCESSES.prometheus_name}, instance)"),
        _variable("op", "Call", f'label_values({catalogue.CALLS.prometheus_name}{{instance=~"$node"}}, op)'),
    ]
    return {
        "uid": "ingero",
        "title": "Ingero: why the GPU stalls",
        "description": "Made by tools/gen_grafana_dashboard.py from the table of metrics.",
        "tags": ["gpu", "ingero"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), 1)],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    everything = {"selected": True, "text": "All", "value": "$__all"}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # whenever the shown time changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": everything,
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, top, _COLUMNS, 1)}
        top, left = top + 1, 0
        for panel in panels:
            if left + panel.columns > _COLUMNS:
                top, left = top + _HEIGHT, 0
            yield {**_panel(panel), "gridPos": _place(left, top, panel.columns, _HEIGHT)}
            left += panel.columns
        top += _HEIGHT


def _panel(panel: Panel) -> dict[str, Any]:
    is_instant = panel.kind == "bargauge"
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend,
         "instant": is_instant, "range": not is_instant}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]  # fmt: skip
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 30 if panel.is_stacked else 0, "lineWidth": 1, "stacking": stacking}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if panel.kind == "timeseries":
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _place(left: int, top: int, columns: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": columns, "h": height}


if __name__ == "__main__":
    write_or_check(DASHBOARD, json.dumps(dashboard(), indent=1) + "\n")
