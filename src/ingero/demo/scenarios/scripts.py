"""What several scripts have in common: who took the CPU from the steps of a scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingero.demo.scene import Actor, Scene


def take_cpu(
    scene: Scene,
    affected: Actor,
    steps: Sequence[tuple[float, float, float]],
    ms: float,
    cpu_users: Sequence[tuple[int, str]],
) -> None:
    """`ms` of each of these steps (as `Scene.train` answers them) were taken by (pid, name), in equal shares."""
    for second, count in Counter(int(end) for _, _, end in steps).items():
        for pid, name in cpu_users:
            scene.took(affected, pid, name, second, ms * count / len(cpu_users), switches=count)
