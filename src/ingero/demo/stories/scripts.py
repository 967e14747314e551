"""What several scripts have in common: who took the CPU from the steps of a scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingero.demo.scene import Actor, Scene


def take_cpu(
    scene: Scene,
    victim: Actor,
    steps: Sequence[tuple[float, float, float]],
    ms: float,
    takers: Sequence[tuple[int, str]],
) -> None:
    """`ms` of each of these steps (as `Scene.train` answers them) were taken by (pid, name), in equal shares."""
    for second, count in Counter(int(end) for _, _, end in steps).items():
        for pid, name in takers:
            scene.took(victim, pid, name, second, ms * count / len(takers), switches=count)
