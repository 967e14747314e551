"""Writes the sample nodes of examples/recordings: one job, a rank on each, and a backup on the second node.

They are written by a script through the recorder's own writer, as `ingero demo --no-gpu` does; incidents are those that
`explain` finds, stored as `trace` stores them. Times are fixed, so that the same build writes the same rows.
Run: python tools/gen_sample_nodes.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import apsw

from ingero.capture.live_findings import chain_rows, incident_rows
from ingero.demo.scene import Actor, Scene, Step
from ingero.demo.stories.scripts import take_cpu
from ingero.diagnose.engine import diagnose
from ingero.events import STATE_COLUMNS
from ingero.store import tables
from ingero.store.reader import open_reader

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "recordings"
NODES = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")
SLOW = "gpu-node-02"
SECONDS = 6
PID, BACKUP = 4100, 4711  # the same on every node
_LATE_MS = 37.0  # beside 5 ms that a wait for the device takes anyway
_CALLS = {"cudaLaunchKernel": (40.0, 0.005), "cudaStreamSynchronize": (1.0, 14.0)}
_STEP = Step(busy_ms=15.0, launches=40)
_RECORDED = 8  # of so many steps, one has rows of its calls
_LAUNCH_MS, _DRIVER_MS, _ENQUEUING_MS = 0.02, 0.012, 1.0
# Several rows may be of one second: the first of them has all.
_COUNT_RECORDED = """
UPDATE raw_op_stats AS s SET recorded = (
    SELECT count(*) FROM raw_events e WHERE (e.process, e.source, e.op) = (s.process, s.source, s.op)
    AND e.start_ns >= s.start_ns AND e.start_ns < s.start_ns + s.period_s * 1000000000)
WHERE s.id IN (SELECT min(id) FROM raw_op_stats GROUP BY process, source, op, start_ns)
"""


def write_nodes(folder: Path) -> list[Path]:
    """The recordings, in the order of the nodes."""
    return [_write(folder / f"sample-{node}.db", node, rank) for rank, node in enumerate(NODES)]


def _write(path: Path, node: str, rank: int) -> Path:
    path.unlink(missing_ok=True)
    identity = f"{rank + 1:032x}"
    with Scene(path, seconds=SECONDS, node=node, machine_id=identity, boot_id=identity) as scene:
        trainer = scene.process(PID, "python", rank=rank, world_size=len(NODES))
        _record(scene, trainer, scene.train(trainer, 0, 2, _STEP, calls=_CALLS), 0.0)
        if node == SLOW:
            late = Step(busy_ms=15.0, launches=40, late_ms=0.05 + _LATE_MS, sync={"runq": _LATE_MS})
            calls = _CALLS | {"cudaStreamSynchronize": (1.0, 14.0 + _LATE_MS)}
            steps = scene.train(trainer, 2, 5, late, calls=calls)
            take_cpu(scene, trainer, steps, _LATE_MS, [(BACKUP, "backup")])
            _record(scene, trainer, steps, _LATE_MS)
        else:
            _record(scene, trainer, scene.train(trainer, 2, 5, _STEP, calls=_CALLS), 0.0)
        _record(scene, trainer, scene.train(trainer, 5, SECONDS, _STEP, calls=_CALLS), 0.0)
    _store_incidents(path)
    _shrink(path)
    return path


def _record(scene: Scene, trainer: Actor, steps: Sequence[tuple[float, float, float]], late_ms: float) -> None:
    """Rows of some steps' calls: a launch with the driver's call in it, and the sync with its account."""
    for _, first_s, end_s in steps[::_RECORDED]:
        scene.call(trainer, "cudaLaunchKernel", first_s, _LAUNCH_MS, **_account(_LAUNCH_MS, run=_LAUNCH_MS))
        scene.call(trainer, "cuLaunchKernel", first_s + 4e-6, _DRIVER_MS, **_account(_DRIVER_MS, run=_DRIVER_MS))
        sync_ms = (end_s - first_s) * 1000 - _ENQUEUING_MS
        account = _account(sync_ms, run=0.05, runq=late_ms)
        if late_ms:
            account |= {"culprit_pid": BACKUP, "culprit_name": scene.text("backup"), "culprit_ns": int(late_ms * 1e6)}
        scene.call(trainer, "cudaStreamSynchronize", first_s + _ENQUEUING_MS / 1000, sync_ms, **account)


def _account(ms: float, *, run: float, runq: float = 0.0) -> dict[str, int]:
    """The clocks of a call, which add up to it: what is neither of these two it slept."""
    total_ns, run_ns, runq_ns = int(ms * 1e6), int(run * 1e6), int(runq * 1e6)
    clocks = {"run_ns": run_ns, "runq_ns": runq_ns, "sleep_ns": total_ns - run_ns - runq_ns}
    return dict.fromkeys(STATE_COLUMNS, 0) | clocks | {"residual_ns": 0}


def _store_incidents(path: Path) -> None:
    """And how many of the calls that are counted have rows, as the recorder counts them."""
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        incidents = diagnose(reader, window).incidents if window else ()
    db = apsw.Connection(str(path))
    db.execute(_COUNT_RECORDED)
    for one in incidents:
        for table, rows in ((tables.INCIDENTS, incident_rows(one, 1)), (tables.CAUSAL_CHAINS, chain_rows(one, 1))):
            db.executemany(table.insert_sql(), rows)
    db.close()


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
