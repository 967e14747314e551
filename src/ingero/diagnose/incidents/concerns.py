"""Filters a diagnosis by process and by cause."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ingero.diagnose.findings import Diagnosis


def is_about(pid: int, affected: Collection[int], root: str) -> bool:
    """Whether an incident with these affected processes (pids) and this root is about a process, or about no process
    in particular.

    An event without lost time has no affected processes; the pid it happened to is the first word of its root.
    """
    if affected:
        return pid in affected
    first = root.partition(" ")[0]
    return not first.isdecimal() or int(first) == pid


def filter_diagnosis(diagnosis: Diagnosis, *, pid: int | None, rule: str | None) -> Diagnosis:
    """The part of a diagnosis that is about one process (pid) and one cause (rule); None: any."""
    incidents = tuple(
        incident
        for incident in diagnosis.incidents
        if (rule is None or incident.cause == rule)
        and (pid is None or is_about(pid, [affected.pid for affected in incident.affected], incident.root))
    )
    return replace(
        diagnosis,
        incidents=incidents,
        verdicts=tuple(verdict for verdict in diagnosis.verdicts if pid is None or verdict.pid == pid),
        not_evaluated=tuple(spot for spot in diagnosis.not_evaluated if rule is None or spot.cause == rule),
    )
