"""Writes the culprits of CPU contention for the steps of a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingero.demo.scene import Actor, ScriptedRun


def take_cpu(
    run: ScriptedRun,
    affected: Actor,
    steps: Sequence[tuple[float, float, float]],
    ms: float,
    cpu_users: Sequence[tuple[int, str]],
) -> None:
    """Writes that cpu_users (pid, name) ran for `ms` of each step from `ScriptedRun.train`, in equal shares."""
    for second, count in Counter(int(end) for _, _, end in steps).items():
        for pid, name in cpu_users:
            run.culprit(affected, pid, name, second, ms * count / len(cpu_users), switches=count)
