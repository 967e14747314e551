"""Diagnoses scripted recordings of two ranks that train together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun
from ingero.diagnose.findings import Diagnosis
from ingero.store.writing.tables import Value
from tests.unit.diagnose.causes.golden import LENGTH_S, diagnosed_file

Script = Callable[[ScriptedRun, Actor, Actor], None]


def diagnosed_ranks(
    folder: Path,
    script: Script,
    *,
    not_traced: dict[str, str] | None = None,
    comm_id_hash: tuple[int, int] = (77, 77),
    second: dict[str, Value] | None = None,
) -> Diagnosis:
    """The diagnosis of ranks 0 (pid 100) and 1 (pid 101), by default in one communicator. second: columns of rank 1."""
    with ScriptedRun(folder / "ranks.db", seconds=LENGTH_S, not_traced=not_traced) as run:
        launcher = run.process(50, "torchrun")
        first = run.process(100, "python", parent=launcher, rank=0, world_size=2)
        other = run.process(101, "python", parent=launcher, rank=1, world_size=2, **(second or {}))
        for rank, (actor, name) in enumerate(zip((first, other), comm_id_hash, strict=True)):
            run.communicator(actor, rank=rank, ranks=2, comm_id_hash=name)
        script(run, first, other)
    return diagnosed_file(folder / "ranks.db")
