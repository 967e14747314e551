"""Two ranks that train together, for scenes of communication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import Actor, Scene
from ingero.diagnose.findings import Diagnosis
from ingero.store.writing.tables import Value
from tests.unit.diagnose.causes.golden import LENGTH_S, diagnosed_file

Script = Callable[[Scene, Actor, Actor], None]


def diagnosed_ranks(
    folder: Path,
    script: Script,
    *,
    not_traced: dict[str, str] | None = None,
    comm_id_hash: tuple[int, int] = (77, 77),
    second: dict[str, Value] | None = None,
) -> Diagnosis:
    """Rank 0 is pid 100, rank 1 pid 101; they share a communicator unless told otherwise. second: columns of rank 1."""
    with Scene(folder / "ranks.db", seconds=LENGTH_S, not_traced=not_traced) as scene:
        launcher = scene.process(50, "torchrun")
        first = scene.process(100, "python", parent=launcher, rank=0, world_size=2)
        other = scene.process(101, "python", parent=launcher, rank=1, world_size=2, **(second or {}))
        for rank, (actor, name) in enumerate(zip((first, other), comm_id_hash, strict=True)):
            scene.communicator(actor, rank=rank, ranks=2, comm_id_hash=name)
        script(scene, first, other)
    return diagnosed_file(folder / "ranks.db")
