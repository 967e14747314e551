"""A diagnosis as JSON: stable keys, times in unix ns, ratios from 0 to 1.

`cli/explain.schema.json` says what each key means. Keys may be added within a version; none is renamed or removed.
"""

from __future__ import annotations

from ingero.diagnose.findings import Diagnosis, NotEvaluated, ProcessVerdict
from ingero.diagnose.incidents.incident_json import Object, incident_json
from ingero.diagnose.steps.gpu_idle import GpuIdle
from ingero.serve.structured.profile_json import profiles_json
from ingero.store.records import Window

VERSION = 1


def diagnosis_json(diagnosis: Diagnosis) -> Object:
    """A diagnosis as JSON: all findings, worst first, and what could not be checked."""
    return {
        "version": VERSION,
        "window": window_json(diagnosis.window),
        "incidents": [incident_json(incident) for incident in diagnosis.incidents],
        "verdicts": [verdict_json(verdict) for verdict in diagnosis.verdicts],
        "not_checked": [_not_evaluated(spot) for spot in diagnosis.not_evaluated],
        "not_traced": dict(diagnosis.not_traced),
        "profiles": profiles_json(diagnosis.profiles) if diagnosis.profiles else None,
    }


def window_json(window: Window) -> Object:
    """A window as JSON: begin, end (exclusive) and length."""
    return {"begin_ns": window.begin_ns, "end_ns": window.end_ns, "duration_ns": window.duration_ns}


def verdict_json(verdict: ProcessVerdict) -> Object:
    """The verdict on a process as JSON."""
    return {
        "process": verdict.process,
        "pid": verdict.pid,
        "name": verdict.name,
        "text": verdict.text,
        "has_incident": verdict.has_incident,
        "rank": verdict.rank,
        "job": verdict.job,
        "steps": {"how": verdict.how.value, "count": verdict.steps} if verdict.how else None,
        "gpu_idle": gpu_idle_json(verdict.gpu_idle) if verdict.gpu_idle else None,
        "node": verdict.node,
    }


def gpu_idle_json(idle: GpuIdle) -> Object:
    """Bounds of the GPU idle time of a process, and the proof of each bound; 0 and 1: nothing is proven."""
    return {
        "min_ratio": idle.low,
        "max_ratio": idle.high,
        "min_from": idle.low_from,
        "max_from": idle.high_from,
        "text": idle.words,
    }


def _not_evaluated(spot: NotEvaluated) -> Object:
    return {"cause": spot.cause, "reason": spot.reason, "ranges": [window_json(part) for part in spot.time_ranges]}
