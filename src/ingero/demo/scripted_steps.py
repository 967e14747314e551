"""What a script's loop does in a step: the parts of its sync intervals, their thread-state time, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingero.events import STATES
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
Frames = Sequence[tuple[str, int, str]]  # (file, line, function), innermost first

BEGIN_NS = 1_760_000_000_000_000_000
SYNC_INTERVAL_TIMES = ("prev_sync_end_ns", "first_launch_ns", "sync_start_ns", "gpu_done_ns", "sync_end_ns")
_USUAL_CALLS: dict[str, tuple[float, float]] = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, 0.01)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One sync interval: its parts in ms, and the thread-state time of the critical-path thread in each (ms).

    What `empty` and `enqueue` (by name of STATES) do not name is `run`, of the sync `sleep`.
    """

    empty_ms: float = 0.5
    enqueue_ms: float = 1.0  # from the first launch to the sync
    busy_ms: float = 6.0  # from the first launch until the GPU is done
    late_ms: float = 0.05
    empty: Mapping[str, float] = field(default_factory=dict)
    enqueue: Mapping[str, float] = field(default_factory=dict)
    sync: Mapping[str, float] = field(default_factory=dict)
    launches: int = 80
    size_bytes: int = 1 << 20
    flags: int = 0  # of SyncIntervalFlag
    noise: float = 0.004  # of busy_ms, one sigma
    is_unseen: bool = False  # its launches are not traced: until the sync it is the host's part, in `empty`
    ran_instead: tuple[tuple[int, str], ...] = ()  # (pid, name), in a WholeScene: equal shares of the `runq` time
    stack: Frames = ()  # in a WholeScene: where the thread sleeps before its first launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One sync interval of a loop whose steps have one or more of them.

    calls: by name, how many and ms per call, the sync among them; sizes: bytes per call. longest: by name, ms of one
    more call in each interval, the first of its name.
    """

    step: Step
    sync_op: str = "cudaStreamSynchronize"
    calls: Mapping[str, tuple[float, float]] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)

    @property
    def made(self) -> Mapping[str, tuple[float, float]]:
        """The calls of an interval, the usual ones unless they are named."""
        return self.calls or _USUAL_CALLS | {self.sync_op: (1.0, self.step.busy_ms - self.step.enqueue_ms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The sync intervals of one phase: their times, and thread-state time (ns) by column of `raw_sync_intervals`."""

    times: Mapping[str, Array]
    states: Mapping[str, Array]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.times["prev_sync_end_ns"])

    @property
    def seconds(self) -> Array:
        """In which second of the recording each ended."""
        seconds: Array = (self.times["sync_end_ns"] - BEGIN_NS) // SECOND_NS
        return seconds

    def of_part(self, part: str) -> dict[str, Array]:
        """The thread-state time of one part, by name of STATES."""
        return {name: self.states[f"{part}_{name}_ns"] for name in STATES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A process of the scene; its main thread has its pid."""

    number: int
    pid: int
    name: str


def ns_of(ms: float) -> int:
    """The same time."""
    return round(ms * 1e6)


def intervals_of(step: Step, columns: Mapping[str, Sequence[int]]) -> Intervals:
    """With the states of the thread: what a step does not name is `run`, in the sync `sleep`."""
    a, f, s, r, b = (np.array(columns[name], np.int64) for name in SYNC_INTERVAL_TIMES)
    f = s if step.is_unseen else f
    states: dict[str, Array] = {}
    parts = {"idle": (f - a, step.empty, "run"), "launch": (s - f, step.enqueue, "run")}
    parts |= {"sync": (b - s, step.sync, "sleep")}
    for part, (lengths, named, rest) in parts.items():
        spent = {name: np.minimum(ns_of(ms), lengths) for name, ms in named.items()}
        total = np.sum(list(spent.values()), axis=0) if spent else np.zeros(len(a), np.int64)
        for name in STATES:
            more = np.maximum(lengths - total, 0) if name == rest else 0
            states[f"{part}_{name}_ns"] = np.broadcast_to(spent.get(name, 0) + more, len(a)).astype(np.int64)
    return Intervals(times=dict(zip(SYNC_INTERVAL_TIMES, (a, f, s, r, b), strict=True)), states=states)
