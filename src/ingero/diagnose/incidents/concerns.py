"""Which incidents are about a process, or of a cause."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ingero.diagnose.findings import Diagnosis


def is_about(pid: int, affected: Collection[int], root: str) -> bool:
    """Whether an incident with these affected processes (pids) and this root is about a process, or about nobody in
    particular.

    An event without lost time has no affected processes; whom it happened to is the first word of its root.
    """
    if affected:
        return pid in affected
    first = root.partition(" ")[0]
    return not first.isdecimal() or int(first) == pid


def chosen(diagnosis: Diagnosis, *, pid: int | None, rule: str | None) -> Diagnosis:
    """What of it is about one process, and of one cause."""
    incidents = tuple(
        one
        for one in diagnosis.incidents
        if (rule is None or one.cause == rule)
        and (pid is None or is_about(pid, [affected.pid for affected in one.affected], one.root))
    )
    return replace(
        diagnosis,
        incidents=incidents,
        verdicts=tuple(one for one in diagnosis.verdicts if pid is None or one.pid == pid),
        not_evaluated=tuple(one for one in diagnosis.not_evaluated if rule is None or one.cause == rule),
    )
