"""Writes the sample nodes of examples/recordings: one job, a rank on each, and a backup on the second node.

They are written by a script through the recorder's own writer, as `ingero demo --no-gpu` does; incidents are those that
`explain` finds, stored as `trace` stores them. Times are fixed, so that the same build writes the same rows.
Run: python tools/gen_sample_nodes.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import apsw

from ingero.demo.scene import Step
from ingero.demo.stored_incidents import store_incidents
from ingero.demo.whole_scene import FullScriptedRun

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "recordings"
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")
SLOW = "gpu-node-02"
SECONDS = 6
PID, BACKUP = 4100, 4711  # the same on every node
_RETURN_DELAY_MS = 37.0  # beside the 14 ms of a sync
_CALLS = {
    "cudaLaunchKernel": (60.0, 0.005),
    "cuLaunchKernel": (20.0, 0.004),  # by the library of matrix products
    "cudaMemcpyAsync": (2.0, 0.01),
    "cudaStreamSynchronize": (1.0, 14.0),
}
_STEP = Step(busy_ms=15.0)
_LATE = Step(
    busy_ms=15.0,
    return_delay_ms=0.05 + _RETURN_DELAY_MS,
    sync={"runq": _RETURN_DELAY_MS},
    ran_instead=((BACKUP, "backup"),),
)


def write_nodes(folder: Path) -> list[Path]:
    """The recordings, in the order of the nodes."""
    return [_write(folder / f"sample-{node}.db", node, rank) for rank, node in enumerate(NODES)]


def _write(path: Path, node: str, rank: int) -> Path:
    path.unlink(missing_ok=True)
    identity = f"{rank + 1:032x}"
    with FullScriptedRun(path, seconds=SECONDS, node=node, machine_id=identity, boot_id=identity) as run:
        trainer = run.process(PID, "python", rank=rank, world_size=len(NODES))
        if node == SLOW:
            run.neighbors([(BACKUP, "backup")], 2, 5, threads=2)
        run.train(trainer, 0, 2, _STEP, calls=_CALLS)
        run.train(trainer, 2, 5, _LATE if node == SLOW else _STEP, calls=_CALLS)
        run.train(trainer, 5, SECONDS - 0.02, _STEP, calls=_CALLS)
    store_incidents(path)
    _shrink(path)
    return path


def _shrink(path: Path) -> None:
    """Most of a small recording is pages with a row or none."""
    db = apsw.Connection(str(path))
    for setting in ("PRAGMA page_size = 1024", "VACUUM"):
        list(db.execute(setting))
    db.close()


def main() -> None:
    """Writes them and says how large they are."""
    for path in write_nodes(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
