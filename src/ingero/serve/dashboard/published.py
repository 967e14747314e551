"""Answers of /api/v1 under the names that clients of Ingero 0.8 to 0.17 read. Times in us are integers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

from ingero.diagnose.findings import Diagnosis, Incident
from ingero.serve.structured.stored_findings import stored
from ingero.store.reader import Reader
from ingero.store.records import CausalChain, OpTotals, Snapshot, Window

Object: TypeAlias = "dict[str, Any]"  # becomes JSON at once; no module reads it

_MiB = 1 << 20


def overview(reader: Reader, found: Sequence[Object]) -> Object:
    """Counts, the worst chain, the GPU."""
    sessions = reader.sessions()
    last = sessions[-1] if sessions else None
    [(events,)] = reader.connection.execute("SELECT count(*) FROM raw_events")
    return {
        "event_count": events,
        "session_count": len(sessions),
        "top_chain": found[0] if found else None,
        "gpu": {"model": last.gpu_model, "driver_version": last.gpu_driver, "cuda_version": last.cuda_ver}
        if last and last.gpu_model
        else None,
    }


def machine(snapshot: Snapshot) -> Object:
    """The state of the host at one time, except its CPUs."""
    swap = snapshot.swap_used_bytes
    return {
        "mem_percent": snapshot.mem_percent,
        "swap_mb": None if swap is None else swap // _MiB,
        "load_avg": snapshot.load_avg,
    }


def op(totals: OpTotals) -> Object:
    """A row of operations under the names of older versions, beside today's."""
    points = {name: getattr(totals, f"{name}_ns") for name in ("p50", "p95", "p99")}
    return {
        "operation": totals.name,
        "avg_us": totals.sum_ns // totals.count // 1000 if totals.count else 0,
        "max_us": totals.max_ns // 1000,
    } | {f"{name}_us": None if value is None else int(value // 1000) for name, value in points.items()}


def ops_mode(totals: Sequence[OpTotals]) -> str:
    """The mode of the totals: whether they have percentiles."""
    if not totals:
        return "empty"
    return "percentile" if any(total.p50_ns is not None for total in totals) else "aggregate"


def chains(reader: Reader, window: Window, diagnosis: Diagnosis) -> list[Object]:
    """Incidents as causal chains, worst first; in a recording of an older version, those that it stored."""
    if reader.older_version and not diagnosis.incidents:
        return [_stored(chain) for chain in stored(reader, window).chains]
    nodes = reader.nodes()
    only = nodes[0] if len(nodes) == 1 else ""  # incidents say their node where there are several
    return [_chain(incident, incident.node or only) for incident in diagnosis.incidents]


def _chain(incident: Incident, node: str) -> Object:
    recommendations = [f"{fix.text}: {fix.command}" if fix.command else fix.text for fix in incident.fixes]
    return {
        "id": str(incident.number),
        "detected_at": _moment(incident.start_ns),
        "severity": incident.severity.name,
        "summary": incident.summary,
        "root_cause": incident.cause,
        "explanation": "; ".join(link.text for link in incident.chain),
        "recommendations": recommendations,
        "cuda_op": "",
        "cuda_p99_us": 0,
        "cuda_p50_us": 0,
        "tail_ratio": 0.0,
        "timeline": [{"layer": incident.kind.value, "detail": link.text} for link in incident.chain],
        "node": node,
        "lost_ns": incident.lost_ns,
        "start_ns": incident.start_ns,
    }


def _stored(chain: CausalChain) -> Object:
    return {
        "id": chain.chain_id,
        "detected_at": _moment(chain.detected_ns),
        "severity": chain.severity,
        "summary": chain.summary,
        "root_cause": chain.root_cause,
        "explanation": chain.explanation,
        "recommendations": [str(one) for one in _listed(chain.recommendations)],
        "cuda_op": chain.cuda_op,
        "cuda_p99_us": chain.cuda_p99_us or 0,
        "cuda_p50_us": chain.cuda_p50_us or 0,
        "tail_ratio": chain.tail_ratio or 0.0,
        "timeline": _listed(chain.timeline),
        "node": chain.node,
        "lost_ns": 0,
        "start_ns": chain.detected_ns,
    }


def _listed(text: str) -> list[Any]:
    """A stored JSON list; empty if the file holds something else."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _moment(unix_ns: int) -> str:
    """A time in RFC 3339 format."""
    try:
        return datetime.fromtimestamp(unix_ns / 1e9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a file may say any number
        return ""
