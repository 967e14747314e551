"""Two ranks that train together, for scenes of communication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import Actor, Scene
from ingero.diagnose.model import Diagnosis
from tests.unit.rules.golden import LENGTH_S, diagnosed_file

Script = Callable[[Scene, Actor, Actor], None]


def diagnosed_ranks(
    folder: Path, script: Script, *, not_traced: dict[str, str] | None = None, comm_id_hash: tuple[int, int] = (77, 77)
) -> Diagnosis:
    """Rank 0 is pid 100, rank 1 is pid 101; they share a communicator unless told otherwise."""
    with Scene(folder / "ranks.db", seconds=LENGTH_S, not_traced=not_traced) as scene:
        launcher = scene.process(50, "torchrun")
        first = scene.process(100, "python", parent=launcher, rank=0, world_size=2)
        second = scene.process(101, "python", parent=launcher, rank=1, world_size=2)
        for rank, (actor, name) in enumerate(zip((first, second), comm_id_hash, strict=True)):
            scene.communicator(actor, rank=rank, ranks=2, comm_id_hash=name)
        script(scene, first, second)
    return diagnosed_file(folder / "ranks.db")
