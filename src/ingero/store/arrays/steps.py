"""Steps as the diagnosis reads them: sync intervals whose first part is the host's own time, the second what it was
blocked.

A step says nothing of when the GPU was idle within it. So of its time a to b, e is what the marker's thread did itself,
x what it was blocked in calls that waited for the GPU, wherever in the step that was; f, s and r stand at b.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from ingero.events import BLOCKED_KINDS, STATE_COLUMNS, STATES, SyncIntervalFlag
from ingero.store.arrays import arrays
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.records import Clocks, StepTotals, Window

_NUMBERS = ("process", "pid", "tid", "device", "stream", "start_ns", "end_ns", "step_type", "source", "op")
_MORE = ("launches", "host_to_gpu_bytes + gpu_to_host_bytes", "flags")
_SUM_OF_BLOCKED = " + ".join(f"blocked_{kind}_ns" for kind in BLOCKED_KINDS)
_SLEEP = STATES.index("sleep")
# steps of a profiler's file have no clocks: those are not judged by them
_IN_WINDOW = "end_ns >= :begin AND end_ns < :end AND host_run_ns IS NOT NULL"
_WHOLE = ", ".join((*_NUMBERS, *_MORE, *(f"{part}_{clock}" for part in ("host", "blocked") for clock in STATE_COLUMNS)))
_IN_SHORT = ", ".join(
    (
        *(
            "process",
            "pid",
            "device",
            "stream",
            "start_ns",
            "end_ns",
            _SUM_OF_BLOCKED,
            "step_type",
            "flags",
            "launches",
        ),
        *("tid", "host_sleep_ns", "syncs"),
    )
)


def read_steps(db: apsw.Connection, window: Window, process: int) -> npt.NDArray[np.void]:
    """Steps of a process that ended in the window, by their end: `arrays.SYNC_INTERVAL_DTYPE`."""
    sql = f"SELECT {_WHOLE} FROM raw_steps WHERE {_IN_WINDOW} AND process = :process ORDER BY end_ns"
    rows = list(db.execute(sql, {"begin": window.begin_ns, "end": window.end_ns, "process": process}))
    return _sync_intervals(np.array(rows, np.int64).reshape(len(rows), len(_NUMBERS) + len(_MORE) + 2 * len(STATES)))


def read_step_gpu_streams(db: apsw.Connection, window: Window) -> list[GpuStream]:
    """The steps of each process that ended in the window, in short form."""
    rows: dict[int, list[Sequence[Any]]] = defaultdict(list)
    sql = f"SELECT {_IN_SHORT} FROM raw_steps WHERE {_IN_WINDOW} ORDER BY end_ns"
    for row in db.execute(sql, {"begin": window.begin_ns, "end": window.end_ns}):
        rows[int(row[0])].append(row)
    return [_gpu_stream(mine) for mine in rows.values()]


def read_step_totals(db: apsw.Connection, window: Window) -> list[StepTotals]:
    """The steps of each process that ended in the window, summed by SQLite; `ops` gives the marker its name."""
    sums = [
        "count(*)",
        "sum(end_ns - start_ns)",
        f"sum(flags & {int(SyncIntervalFlag.UNTIMED)} != 0)",
        f"sum(flags & {int(SyncIntervalFlag.LAUNCHES_UNSEEN)} != 0)",
        f"sum(flags & {int(SyncIntervalFlag.INCOMPLETE)} != 0)",
        *(f"sum(blocked_{kind}_ns)" for kind in BLOCKED_KINDS),
        *(f"sum(host_{clock})" for clock in STATE_COLUMNS),
    ]
    marker = (
        "(SELECT o.name FROM raw_steps m JOIN ops o ON o.source_id = m.source AND o.op_id = m.op "
        "WHERE m.process = s.process AND m.end_ns >= :begin AND m.end_ns < :end GROUP BY m.source, m.op "
        "ORDER BY count(*) DESC LIMIT 1)"
    )
    columns = ", ".join(sums)
    sql = f"SELECT process, coalesce({marker}, ''), {columns} FROM raw_steps s WHERE {_IN_WINDOW} GROUP BY process"
    found = []
    for process, name, *values in db.execute(sql, {"begin": window.begin_ns, "end": window.end_ns}):
        steps, wall_ns, untimed, unseen, incomplete, *rest = (int(value) for value in values)
        blocked, clocks = rest[: len(BLOCKED_KINDS)], rest[len(BLOCKED_KINDS) :]
        found.append(
            StepTotals(
                process=process,
                steps=steps,
                marker=name,
                wall_ns=wall_ns,
                clocks=Clocks(**dict(zip(STATE_COLUMNS, clocks, strict=True))),
                blocked_ns=tuple(blocked),
                untimed=untimed,
                unseen=unseen,
                incomplete=incomplete,
            )
        )
    return found


def _gpu_stream(rows: Iterable[Sequence[Any]]) -> GpuStream:
    """The steps of one process as a stream: that of its newest step."""
    numbers = np.array(list(rows), np.int64)
    process, pid, device, stream = numbers[-1, :4].tolist()
    _, _, _, _, start, end, blocked, step_type, flags, launches, tid, asleep, syncs = numbers.T
    steps = np.zeros(len(numbers), arrays.GPU_STREAM_DTYPE)
    _place(steps, start, end, np.minimum(blocked, end - start))
    steps["step_type"], steps["flags"], steps["launches"], steps["prev_sync_tid"] = step_type, flags, launches, tid
    steps["flags"] |= int(SyncIntervalFlag.STEP)
    steps["idle_sleep_ns"], steps["syncs"] = asleep, syncs
    return GpuStream(process=process, pid=pid, device=device, stream=stream, sync_intervals=steps, is_steps=True)


def _sync_intervals(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    process, pid, tid, device, stream, start, end, step_type, source, op, launches, size, flags = numbers[:, :13].T
    host, blocked = np.split(numbers[:, 13:], 2, axis=1)
    steps = np.zeros(len(numbers), arrays.SYNC_INTERVAL_DTYPE)
    _place(steps, start, end, np.minimum(blocked.sum(axis=1), end - start))
    of_field = {"process": process, "pid": pid, "device": device, "stream": stream, "step_type": step_type}
    of_field |= {"source": source, "op": op, "launches": launches, "bytes": size}
    of_field |= {
        "flags": flags | int(SyncIntervalFlag.STEP),
        "prev_sync_tid": tid,
        "first_launch_tid": tid,
        "sync_tid": tid,
    }
    of_field |= {"gpu_done_low_ns": end, "gpu_done_high_ns": end, "idle_state_ns": host, "sync_state_ns": blocked}
    for name, values in of_field.items():
        steps[name] = values
    return steps


def _place(
    steps: npt.NDArray[np.void],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    blocked: npt.NDArray[np.int64],
) -> None:
    steps["prev_sync_end_ns"] = start
    steps["first_launch_ns"] = steps["sync_start_ns"] = steps["gpu_done_ns"] = steps["sync_end_ns"] = end
    steps["idle_ns"], steps["busy_ns"] = end - start - blocked, blocked
