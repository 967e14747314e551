"""The answers of the dashboard's addresses: objects of stable keys, times in Unix ns, ratios from 0 to 1."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from ingero.diagnose.causes.rule import all_rules
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, Incident
from ingero.diagnose.incidents.incident_json import incident_json
from ingero.diagnose.steps.gpu_idle import gpu_idle
from ingero.diagnose.steps.process_steps import ProcessSteps
from ingero.errors import IngeroError
from ingero.events import BLOCKED_KINDS, STATE_TEXTS, STATES
from ingero.given_up import sentences
from ingero.ops import Source
from ingero.serve.dashboard import published
from ingero.serve.dashboard.columns import clock_points
from ingero.serve.dashboard.selection import CALL_SOURCES
from ingero.serve.sql import run_sql
from ingero.serve.structured.findings_json import diagnosis_json, gpu_idle_json, window_json
from ingero.store.machine import grown_ratio
from ingero.store.reader import Reader
from ingero.store.records import Drop, OpTotals, Process, Snapshot, StepTotals, Window

Object: TypeAlias = "dict[str, Any]"  # becomes JSON at once; no module reads it

_TABLES = (
    ("sync_intervals", "raw_sync_intervals", "a stream's time from one GPU sync to the next"),
    ("clocks", "raw_thread_state_seconds", "what threads did, second by second"),
    ("culprits", "raw_culprits", "who ran while threads waited"),
    ("samples", "raw_stack_samples", "where threads were outside GPU calls"),
    ("kernel_launches", "raw_kernel_launches", "launches per GPU kernel"),
    ("gpu_samples", "raw_gpu_samples", "utilization, clocks and memory by the driver"),
    ("drops", "raw_drops", "what was lost, by reason"),
    ("quantiles", "raw_call_sites", "histograms of call durations"),
)
_MAX_GRAPH_EVENTS = 1000
_TOP_CULPRITS = 10
_GRAPH_SECONDS = 30.0  # time limit of a query over all stored calls


class NoIncidentError(IngeroError):
    """No incident has that number."""


def state(reader: Reader, window: Window, now_ns: int) -> Object:
    """The begin of every answer: the time range, and whether it grows."""
    return {
        "now_ns": now_ns,
        "is_live": reader.is_live(now_ns),
        "older_version": reader.older_version,
        "window": window_json(window),
    }


def overview(reader: Reader, window: Window, diagnosis: Diagnosis) -> Object:
    """The verdict, followed by the facts about the recording."""
    severities = Counter(one.severity.name for one in diagnosis.incidents)
    found = published.chains(reader, window, diagnosis)
    own: Object = {
        "database": reader.path.name,
        "incident_counts": dict(severities),
        "chain_count": len(found),
        "diagnosis": diagnosis_json(diagnosis),
    }
    return own | published.overview(reader, found) | facts(reader, window)


def facts(reader: Reader, window: Window) -> Object:
    """Facts about the recording: hosts, contents and completeness; the overview without its verdict."""
    calls = [total for total in reader.op_totals(window) if total.source in CALL_SOURCES]
    rows = reader.snapshots(window)
    nodes = {session.session: session.node for session in reader.sessions()}
    return {
        "sessions": [
            {
                "node": session.node,
                "started_ns": session.started_ns,
                "stopped_ns": session.stopped_ns,
                "last_seen_ns": session.last_seen_ns,
                "stop_reason": session.stop_reason,
                "gpu_model": session.gpu_model,
                "gpu_driver": session.gpu_driver,
                "kernel": session.kernel,
                "ingero_version": session.ingero_ver,
            }
            for session in reader.sessions()
        ],
        "processes": [process_json(process, nodes.get(process.session, "")) for process in reader.processes()],
        "calls": sum(call.count for call in calls),
        "recorded_calls": sum(call.recorded for call in calls),
        "top_op": op_json(calls[0]) if calls else None,
        "has_exact_totals": reader.has_exact_totals,
        "system": _machine(rows),
        "overhead": _overhead(rows),
        "lost": sum(drop.count for drop in _drops(reader, window) if not drop.counter.endswith("_ns")),
    }


def ops(reader: Reader, window: Window, process: int | None) -> Object:
    """Exact totals by process and operation, highest total first."""
    totals = reader.op_totals(window, process=process)
    return {
        "has_exact_totals": reader.has_exact_totals,
        "mode": published.ops_mode(totals),
        "ops": [op_json(total) | published.op(total) for total in totals],
    }


def chains(reader: Reader, window: Window, diagnosis: Diagnosis) -> Object:
    """Incidents as causal chains, worst first; then those that an older version stored itself."""
    found = published.chains(reader, window, diagnosis)
    for one, incident in zip(found, diagnosis.incidents, strict=False):  # those that were stored have no more to say
        one |= {"detected_ns": incident.start_ns, "chain": incident_json(incident)["evidence"]}
    return {"chains": found, "stored": [asdict(chain) for chain in reader.causal_chains(window)]}


def snapshots(reader: Reader, window: Window, points: int) -> Object:
    """The host over time, at most so many points: means of shares and sizes, sums of stalls.

    `..._ns`: sums, as stored. `..._ratio`: what of them has a known period, as a share of that; of several nodes on
    average, so that no pressure is above 1; null in the first snapshot of a recording.
    """
    rows = reader.snapshots(window)
    each = max(1, -(-len(rows) // points))
    found = [_mean(rows[at : at + each]) for at in range(0, len(rows), each)]
    return {"snapshots_per_point": each, "snapshots": found}


def clocks(reader: Reader, window: Window, process: int, points: int) -> Object:
    """Thread-state time of a process over time, summed over its threads.

    elapsed_ns of a point: how much of its step was recorded, which is what its times are of.
    """
    seconds = reader.thread_state_seconds(window, process=process)
    step_ns = max(1_000_000_000, -(-window.duration_ns // points))
    found = clock_points(seconds, step_ns)
    return {"clocks": list(STATES), "step_ns": step_ns, "points": found}


def processes(reader: Reader, window: Window) -> Object:
    """Each traced process: thread-state time, steps, sync intervals of its streams, and culprits."""
    evidence = Evidence(reader, window)
    step_totals = {one.process: one for one in reader.step_totals(window)}
    totals = (
        {totals.process: totals for totals in reader.thread_state_totals(window)}
        if reader.is_recorded("thread_state_seconds")
        else {}
    )
    gpu_streams = _gpu_streams(reader, window)
    places = {container.cgroup_id: container for container in reader.containers()}
    nodes = {session.session: session.node for session in reader.sessions()}
    found = []
    for process in reader.processes():
        clock = totals.get(process.process)
        place = places.get(process.cgroup_id or 0)
        found.append(
            process_json(process, nodes.get(process.session, ""))
            | {
                "cmdline": process.cmdline,
                "exit_code": process.exit_code,
                "container": place.container_id if place else "",
                "pod": place.pod if place else "",
                "threads": clock.threads if clock else None,
                "involuntary_switches": clock.involuntary_switches if clock else None,
                "clocks": asdict(clock.clocks) if clock else None,
                "steps": _steps(evidence.steps.get(process.process), step_totals.get(process.process)),
                "gpu_idle": _gpu_idle(evidence, process),
                "gpu_streams": [gpu_stream for gpu_stream in gpu_streams if gpu_stream["process"] == process.process],
                "culprits": _culprits(reader, window, process.process),
            }
        )
    return {"processes": found, "state_texts": STATE_TEXTS}


def drops(reader: Reader, window: Window) -> Object:
    """Dropped and untraced data by reason, and the overhead of tracing."""
    rows = reader.snapshots(window)
    steps = reader.overhead_levels(window) if reader.is_recorded("raw_overhead_levels") else []
    probes = reader.missing_probes() if reader.is_recorded("raw_probes") else []
    return {
        "drops": [
            {"counter": drop.counter, "reason": drop.reason, "count": drop.count} for drop in _drops(reader, window)
        ],
        "overhead_limiter": [asdict(step) | {"not_traced": "\n".join(sentences(step.not_traced))} for step in steps],
        "pruned": [asdict(pruned_rows) for pruned_rows in reader.pruned()],
        "missing_probes": [asdict(probe) for probe in probes],
        "overhead": _overhead(rows),
    }


def capabilities(reader: Reader, diagnosis: Diagnosis) -> Object:
    """What this recording can show and what not, each with the reason: a missing value is no zero."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for spot in diagnosis.not_evaluated:
        reasons[spot.cause].append(spot.text)
    sources = [
        {"name": source.name.lower(), "is_available": source.name not in diagnosis.not_traced,
         "reason": diagnosis.not_traced.get(source.name, "")}
        for source in Source
    ]  # fmt: skip
    recorded = [
        {"name": name, "about": about, "is_available": reader.is_recorded(table),
         "reason": "" if reader.is_recorded(table) else "not recorded by the version that wrote this file"}
        for name, table, about in _TABLES
    ]  # fmt: skip
    causes = [
        {"name": rule.cause, "about": rule.title, "is_available": rule.cause not in reasons,
         "reason": "; ".join(dict.fromkeys(reasons.get(rule.cause, ())))}
        for rule in all_rules()
    ]  # fmt: skip
    return {"sources": sources, "recorded": recorded, "causes": causes}


def graph_metrics(reader: Reader, window: Window) -> Object:
    """Operations on CUDA graphs per process: exact counts and rates."""
    seconds = reader.recorded_ns(window) / 1e9
    found = [total for total in reader.op_totals(window) if total.source == Source.CUDA_GRAPH]
    return {"graph_ops": [op_json(one) | {"per_second": one.count / seconds} for one in found]}


def graph_events(reader: Reader, window: Window) -> Object:
    """Recorded operations on CUDA graphs in order of time: the first of them; counts are in graph-metrics."""
    if not any(total.source == Source.CUDA_GRAPH for total in reader.op_totals(window)):
        return {"events": [], "is_truncated": False}
    answer = run_sql(
        reader.path,
        "SELECT timestamp, pid, tid, op, printf('0x%x', handle) AS handle, duration_ns, ret_code FROM cuda_events "
        f"WHERE source = {int(Source.CUDA_GRAPH)} AND timestamp >= {window.begin_ns} AND timestamp < {window.end_ns} "
        "ORDER BY timestamp",
        max_rows=_MAX_GRAPH_EVENTS,
        timeout_s=_GRAPH_SECONDS,
    )
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return {"events": rows, "is_truncated": answer.is_truncated}


def incident(diagnosis: Diagnosis, number: int) -> Object:
    """One incident with its evidence.

    Raises:
        NoIncidentError: none has that number.
    """
    return {"incident": incident_json(incident_of(diagnosis, number))}


def incident_of(diagnosis: Diagnosis, number: int) -> Incident:
    """The incident with that number.

    Raises:
        NoIncidentError: none has it.
    """
    found: Incident | None = next((one for one in diagnosis.incidents if one.number == number), None)
    if found is None:
        count = len(diagnosis.incidents)
        raise NoIncidentError(f"there is no incident {number}; there are {count}", hint="GET /api/v1/incidents")
    return found


def process_json(process: Process, node: str) -> Object:
    """The identity of a process, and its node."""
    return {
        "process": process.process,
        "pid": process.pid,
        "name": process.name,
        "rank": process.rank,
        "first_seen_ns": process.first_seen_ns,
        "last_seen_ns": process.last_seen_ns,
        "exit_ns": process.exit_ns,
        "node": node,
    }


def op_json(totals: OpTotals) -> Object:
    """One row of the table of operations; clocks null: no thread-state time was kept."""
    names = ("process", "pid", "name", "count", "errors", "nested", "recorded", "sum_ns", "max_ns", "bytes")
    found: Object = {name: getattr(totals, name) for name in names}
    found |= {name: getattr(totals, name) for name in ("p50_ns", "p95_ns", "p99_ns")}
    source = next((one.name.lower() for one in Source if one == totals.source), str(totals.source))
    return found | {"source": source, "clocks": asdict(totals.clocks) if totals.clocks else None}


def _drops(reader: Reader, window: Window) -> list[Drop]:
    return reader.drops(window) if reader.is_recorded("raw_drops") else []


def _overhead(rows: Sequence[Snapshot]) -> Object:
    """The overhead of tracing on each node; null where the host was not sampled."""
    return {
        "agent_cpu_ratio": grown_ratio(rows, "agent_cpu_ns"),
        "agent_rss_bytes": max((row.agent_rss_bytes or 0 for row in rows), default=None),
    }


def _gpu_idle(evidence: Evidence, process: Process) -> Object | None:
    """Bounds of the GPU idle time of a process; null where it has no steps of any kind."""
    return gpu_idle_json(gpu_idle(evidence, process)) if process.process in evidence.main_streams else None


def _steps(known: ProcessSteps | None, totals: StepTotals | None) -> Object | None:
    """The steps of a process, or the sync intervals in their place; times null where they are not by repetition.

    judged_by: `step` or `sync interval`; null where a profiler measured it.
    """
    if known is None:
        return None
    found: Object = {"how": known.how.value, "count": known.count, "text": known.text}
    found["judged_by"] = known.gpu_stream.noun if known.gpu_stream else None
    blocked = dict(zip(BLOCKED_KINDS, totals.blocked_ns, strict=True)) if totals else None
    host_ns = max(0, totals.wall_ns - sum(totals.blocked_ns)) if totals else None
    return found | {"wall_ns": totals.wall_ns if totals else None, "host_ns": host_ns, "blocked_ns": blocked}


def _gpu_streams(reader: Reader, window: Window) -> list[Object]:
    """Wall time of each stream's sync intervals = idle + busy + return delay, busiest first; summed by SQLite."""
    if not reader.is_recorded("raw_sync_intervals"):
        return []
    rows = reader.connection.execute(
        "SELECT process, device, stream, count(*), sum(duration_ns), sum(idle_ns), sum(busy_ns), sum(return_delay_ns) "
        "FROM sync_intervals WHERE sync_end_ns >= ? AND sync_end_ns < ? AND prev_sync_end_ns IS NOT NULL "
        "GROUP BY process, device, stream ORDER BY sum(busy_ns) DESC",
        (window.begin_ns, window.end_ns),
    )
    names = ("process", "device", "stream", "sync_intervals", "wall_ns", "idle_ns", "busy_ns", "return_delay_ns")
    return [dict(zip(names, row, strict=True)) | {"stream": f"{row[2]:#x}"} for row in rows]


def _culprits(reader: Reader, window: Window, process: int) -> list[Object]:
    if not reader.is_recorded("raw_culprits"):
        return []
    names = ("kind", "culprit_pid", "culprit_name", "ns", "switches")
    found = reader.culprits(window, process=process)[:_TOP_CULPRITS]
    return [{name: getattr(one, name) for name in names} for one in found]


def _machine(rows: Sequence[Snapshot]) -> Object | None:
    cpu = [row.cpu_percent for row in rows if row.cpu_percent is not None]
    if not cpu:
        return None
    return published.machine(rows[-1]) | {
        "cpu_percent": sum(cpu) / len(cpu),
        "cpu_percent_max": max(cpu),
        "mem_percent_max": max((row.mem_percent or 0 for row in rows), default=None),
        "load_avg_max": max((row.load_avg or 0 for row in rows), default=None),
    }


_GAUGES = ("cpu_percent", "mem_percent", "mem_available_bytes", "swap_used_bytes", "load_avg", "agent_rss_bytes")
_SUMS = (
    *("psi_cpu_some_ns", "psi_memory_some_ns", "psi_memory_full_ns", "psi_io_some_ns", "psi_io_full_ns"),
    "agent_cpu_ns",
)


def _mean(rows: Sequence[Snapshot]) -> Object:
    def known(name: str) -> Iterator[float]:
        return (value for row in rows if (value := getattr(row, name)) is not None)

    found: Object = {"time_ns": rows[0].time_ns}
    for name in _GAUGES:
        values = list(known(name))
        found[name] = sum(values) / len(values) if values else None
    for name in _SUMS:
        values = list(known(name))
        found[name] = sum(values) if values else None
        found[f"{name.removesuffix('_ns')}_ratio"] = grown_ratio(rows, name)
    return found
