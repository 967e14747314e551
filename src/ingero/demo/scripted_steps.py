"""The steps of a scripted loop: the parts of their sync intervals, the thread-state time of each part, the calls."""

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
_DEFAULT_CALLS: dict[str, tuple[float, float]] = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, 0.01)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One sync interval: its parts in ms, and the thread-state time of the critical-path thread in each (ms).

    `idle`, `launch` and `sync` hold ms by name of STATES; the rest is `run` in the first two, and `sleep` in the sync.
    """

    idle_ms: float = 0.5
    launch_ms: float = 1.0  # from the first launch to the sync
    busy_ms: float = 6.0  # from the first launch until the GPU is done
    return_delay_ms: float = 0.05
    idle: Mapping[str, float] = field(default_factory=dict)
    launch: Mapping[str, float] = field(default_factory=dict)
    sync: Mapping[str, float] = field(default_factory=dict)
    launches: int = 80
    size_bytes: int = 1 << 20
    flags: int = 0  # of SyncIntervalFlag
    noise: float = 0.004  # of busy_ms, one sigma
    is_untraced: bool = False  # its launches are not traced: until the sync it is the host's part, in `idle`
    ran_instead: tuple[tuple[int, str], ...] = ()  # (pid, name), in a FullScriptedRun: equal shares of the `runq` time
    stack: Frames = ()  # in a FullScriptedRun: where the thread sleeps before its first launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One of the sync intervals that make up a step of a loop.

    calls: by name, how many and ms per call, the sync among them; sizes: bytes per call. longest: by name, ms of one
    more call in each interval, the first of its name.
    """

    step: Step
    sync_op: str = "cudaStreamSynchronize"
    calls: Mapping[str, tuple[float, float]] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, float] = field(default_factory=dict)

    @property
    def interval_calls(self) -> Mapping[str, tuple[float, float]]:
        """The calls of one sync interval; _DEFAULT_CALLS and the sync unless `calls` says otherwise."""
        return self.calls or _DEFAULT_CALLS | {self.sync_op: (1.0, self.step.busy_ms - self.step.launch_ms)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The sync intervals of one phase: their times, and thread-state time (ns) by column of `raw_sync_intervals`."""

    times: Mapping[str, Array]
    states: Mapping[str, Array]

    @property
    def count(self) -> int:
        """The number of sync intervals."""
        return len(self.times["prev_sync_end_ns"])

    @property
    def seconds(self) -> Array:
        """The second of the recording in which each interval ended."""
        seconds: Array = (self.times["sync_end_ns"] - BEGIN_NS) // SECOND_NS
        return seconds

    def of_part(self, part: str) -> dict[str, Array]:
        """The thread-state time of one part, by name of STATES."""
        return {name: self.states[f"{part}_{name}_ns"] for name in STATES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A process of the run; its main thread has its pid."""

    number: int
    pid: int
    name: str


def ns_of(ms: float) -> int:
    """Milliseconds in ns."""
    return round(ms * 1e6)


def intervals_of(step: Step, columns: Mapping[str, Sequence[int]]) -> Intervals:
    """The sync intervals with these times, with the thread-state time that the step gives to each of their parts."""
    host_ready, first, sync, done, back = (np.array(columns[name], np.int64) for name in SYNC_INTERVAL_TIMES)
    first = sync if step.is_untraced else first
    states: dict[str, Array] = {}
    parts = {"idle": (first - host_ready, step.idle, "run"), "launch": (sync - first, step.launch, "run")}
    parts |= {"sync": (back - sync, step.sync, "sleep")}
    for part, (lengths, named, rest) in parts.items():
        state_ns = {name: np.minimum(ns_of(ms), lengths) for name, ms in named.items()}
        total = np.sum(list(state_ns.values()), axis=0) if state_ns else np.zeros(len(first), np.int64)
        for name in STATES:
            more = np.maximum(lengths - total, 0) if name == rest else 0
            states[f"{part}_{name}_ns"] = np.broadcast_to(state_ns.get(name, 0) + more, len(first)).astype(np.int64)
    return Intervals(
        times=dict(zip(SYNC_INTERVAL_TIMES, (host_ready, first, sync, done, back), strict=True)), states=states
    )
