"""A profile as JSON: stable keys, times in Unix ns, ratios from 0 to 1 (`cli/explain.schema.json`)."""

from __future__ import annotations

from dataclasses import asdict
from statistics import mean, median

from ingero.diagnose.incidents.incident_json import Object, record_json
from ingero.diagnose.profile.collectives import Collective
from ingero.diagnose.profile.places import HostPlace, WaitPlace
from ingero.diagnose.profile.report import ProfileReport, Profiles
from ingero.diagnose.profile.steps import StepUse

_MAX_WAITS = 20
_MAX_KERNELS = 50


def profiles_json(found: Profiles) -> Object:
    """Every profiled process, and the collectives of several ranks."""
    return {
        "processes": [_process(report) for report in found.reports],
        "collectives": [_collective(collective) for collective in found.collectives],
        "last_ranks": [collective.rank_of(collective.last) for collective in found.collectives],
    }


def _process(report: ProfileReport) -> Object:
    process = report.process
    return {
        "process": process.process,
        "pid": process.pid,
        "name": process.name,
        "rank": process.rank,
        "gpu_id": report.device,
        "stream": report.stream,
        "begin_ns": report.begin_ns,
        "end_ns": report.end_ns,
        "busy_ratio": report.busy_ratio,
        "main_stream_busy_ratio": report.main_stream_busy_ratio,
        "data_loading_ratio": report.data_loading_ratio,
        "paced_by": report.paced_by.value,
        "blocked": {f"{name}_ratio": ratio for name, ratio in report.blocked.items()},
        "step_count": len(report.steps),
        "step_median_ns": median([step.step_ns for step in report.steps]) if report.steps else None,
        "step_mean_ns": mean(step.step_ns for step in report.steps) if report.steps else None,
        "steps": [_step(step) for step in report.steps],
        "marked_steps": [
            {"start_ns": start, "end_ns": end}
            for start, end in zip(report.marks.start_ns, report.marks.end_ns, strict=True)
        ],
        "typical": _typical(report),
        "waits": [_wait(one) for one in report.waits[:_MAX_WAITS]],
        "kernels": [asdict(kernel) for kernel in report.kernels[:_MAX_KERNELS]],
        "collective_wait_ns": report.collective_wait_ns,
    }


def _typical(report: ProfileReport) -> Object:
    """Figures of the typical steps, or of the whole profile where these are too few."""
    return {
        "wall_ns": report.judged_ns,
        "busy_ratio": report.judged_busy_ratio,
        "blocked_ratio": report.judged_blocked_ratio,
        "copy_only_ratio": report.copy_only_ratio,
        "idle_gaps": report.gaps,
        "idle": {share.owner: {"ns": share.idle_ns, "ratio": share.ratio} for share in report.idle},
        "host_places": [_place(one) for one in (*report.input_places, *report.host_places)[:_MAX_WAITS]],
    }


def _step(step: StepUse) -> Object:
    return {
        "start_ns": step.start_ns,
        "end_ns": step.end_ns,
        "step_ns": step.step_ns,
        "busy_ns": step.busy_ns,
        "idle_ns": step.idle_ns,
        "blocked_ns": step.blocked_ns,
        "step_type": step.step_type,
        "how": step.how,
        "launches": step.launches,
        "is_typical": step.is_typical,
    }


def _wait(wait: WaitPlace) -> Object:
    return {
        "kind": wait.kind,
        "op": wait.op,
        "host_memory": wait.host_memory,
        "line": record_json(wait.line) if wait.line else None,
        "count": wait.count,
        "waited_ns": wait.waited_ns,
    }


def _place(place: HostPlace) -> Object:
    return {
        "line": record_json(place.line) if place.line else None,
        "range": place.range_name,
        "gaps": place.gaps,
        "idle_ns": place.idle_ns,
    }


def _collective(collective: Collective) -> Object:
    return {
        "number": collective.number,
        "name": collective.name,
        "start_ns": collective.start_ns,
        "end_ns": collective.end_ns,
        "last_process": collective.last,
        "last_rank": collective.rank_of(collective.last),
        "wait_ns": collective.wait_ns,
        "ranks": [asdict(part) for part in collective.parts],
    }
