"""Writes the three sample nodes of examples/recordings: one job, a rank on each, and a backup on the second node.

They are written by a script through the recorder's own writer, as `ingero demo --no-gpu` does. Times are fixed, so
that the same build writes the same rows. Run: python tools/gen_sample_nodes.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import apsw

from ingero.demo.scene import Scene, Step
from ingero.demo.stories.scripts import take_cpu

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "recordings"
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03")
SLOW = "gpu-node-02"
SECONDS = 6
PID, BACKUP = 4100, 4711  # the same on every node
_LATE_MS = 37.0  # beside 5 ms that a wait for the device takes anyway
_CALLS = {"cudaLaunchKernel": (40.0, 0.005), "cudaStreamSynchronize": (1.0, 14.0)}
_STEP = Step(busy_ms=15.0, launches=40)


def write_nodes(folder: Path) -> list[Path]:
    """The recordings, in the order of the nodes."""
    return [_write(folder / f"sample-{node}.db", node, rank) for rank, node in enumerate(NODES)]


def _write(path: Path, node: str, rank: int) -> Path:
    path.unlink(missing_ok=True)
    identity = f"{rank + 1:032x}"
    with Scene(path, seconds=SECONDS, node=node, machine_id=identity, boot_id=identity) as scene:
        trainer = scene.process(PID, "python", rank=rank, world_size=len(NODES))
        scene.train(trainer, 0, 2, _STEP, calls=_CALLS)
        if node == SLOW:
            late = Step(busy_ms=15.0, launches=40, late_ms=0.05 + _LATE_MS, drain={"runq": _LATE_MS})
            calls = _CALLS | {"cudaStreamSynchronize": (1.0, 14.0 + _LATE_MS)}
            take_cpu(scene, trainer, scene.train(trainer, 2, 5, late, calls=calls), _LATE_MS, [(BACKUP, "backup")])
        else:
            scene.train(trainer, 2, 5, _STEP, calls=_CALLS)
        scene.train(trainer, 5, SECONDS, _STEP, calls=_CALLS)
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
