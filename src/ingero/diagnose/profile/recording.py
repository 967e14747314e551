"""One process of an imported profile as arrays: its calls, what its GPU did, its ranges, its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.profile.intervals import Intervals, united
from ingero.ops import OPS, Kind, Source
from ingero.store.reader import Reader
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

_SOURCES = (int(Source.CUDA), int(Source.DRIVER), int(Source.CUDA_GRAPH), int(Source.NCCL))
_WAITING = "sync"  # kind of an activity that a profiler notes for a wait of the host: the GPU does nothing for it
_OPS_PER_SOURCE = 1 << 16  # more than any source has codes
_KINDS = {int(op.source) * _OPS_PER_SOURCE + op.code: int(op.kind) for op in OPS}
_NAMES = {(int(op.source), op.code): op.name for op in OPS}


@dataclass(frozen=True, kw_only=True)
class ProfiledProcess:
    """One process. Arrays are those of `store.profile_arrays`, each by its begin.

    kinds: `ops.Kind` of each call. device, stream: those with most of its activities; the stream paces it. kernels:
    short and whole names by function. texts: those that the arrays have numbers of. groups: of communicators, what all
    its ranks have in common.
    """

    process: Process
    activities: Array
    calls: Array
    kinds: Array
    ranges: Array
    steps: Array
    device: int
    stream: int
    kernels: dict[int, tuple[str, str]]
    texts: dict[int, str]
    groups: dict[int, int]

    @property
    def begin_ns(self) -> int:
        """When the main GPU began with its first activity: what was before it the profile does not cover."""
        return int(self._of_device["start_ns"][0])

    @property
    def end_ns(self) -> int:
        """When the main GPU was done with its last."""
        return int(self._of_device["end_ns"].max())

    @property
    def wall_ns(self) -> int:
        """The time that the profile covers."""
        return max(self.end_ns - self.begin_ns, 1)

    def covers(self, begin_ns: int, end_ns: int) -> bool:
        """Whether it shows what the GPU did in most of a step: one that goes on behind a cut it does not."""
        return (begin_ns + end_ns) // 2 <= self.end_ns

    @property
    def _of_device(self) -> Array:
        found: Array = self.activities[self.activities["device"] == self.device]
        return found

    def work(self) -> Array:
        """What the main GPU did, whatever its stream."""
        return self._of_device

    def busy(self) -> Intervals:
        """When the main GPU was busy."""
        work = self._of_device
        return united(work["start_ns"], work["end_ns"])

    def busy_stream(self) -> Intervals:
        """When the main stream was."""
        work = self._of_device
        work = work[work["stream"] == self.stream]
        return united(work["start_ns"], work["end_ns"])

    def is_kind(self, kind: Kind) -> Array:
        """Which calls are of one of these kinds."""
        found: Array = (self.kinds & int(kind)) != 0
        return found

    def number(self, text: str) -> int:
        """The number of a text; -1, which no row has, where no row can."""
        return next((number for number, known in self.texts.items() if known == text), -1)

    def ranges_of(self, *kinds: str) -> Array:
        """The ranges of these kinds."""
        found: Array = self.ranges[np.isin(self.ranges["kind"], [self.number(one) for one in kinds])]
        return found

    @property
    def launching_threads(self) -> Array:
        """The threads that enqueue work."""
        found: Array = np.unique(self.calls["tid"][self.is_kind(Kind.ENQUEUE)])
        return found


def op_name(source: int, op: int) -> str:
    """The name of a call."""
    return _NAMES.get((int(source), int(op)), f"operation {op} of source {source}")


def read_profile(reader: Reader, window: Window) -> list[ProfiledProcess]:
    """The processes of which a profiler measured what their GPU did, by rank, else by GPU."""
    numbers = set(reader.profiled_processes(window))
    processes = [one for one in reader.processes(only_traced=False) if one.process in numbers] if numbers else []
    found = [profile for process in processes if (profile := _read(reader, window, process))]
    return sorted(found, key=lambda one: (one.process.rank is None, one.process.rank or 0, one.device))


def _read(reader: Reader, window: Window, process: Process) -> ProfiledProcess | None:
    number = process.process
    activities = _lasting(reader.gpu_activities(window, process=number), 0)
    calls = reader.profiled_calls(window, sources=_SOURCES, process=number)
    ranges = reader.user_ranges(window, process=number)
    steps = _lasting(reader.step_times(window, process=number), 1)
    columns = [(activities, ("kind", "direction", "host_memory")), (ranges, ("kind", "name"))]
    columns.append((steps, ("how", "step_type")))
    numbers = np.unique(np.concatenate([array[name] for array, names in columns for name in names]))
    texts = reader.texts(numbers) | {0: ""}
    activities = activities[[texts.get(int(kind)) != _WAITING for kind in activities["kind"]]]
    kinds = _kinds(calls)
    if not len(activities) or not _is_shown(activities, calls, kinds):
        return None
    device, stream = _main_stream(activities)
    return ProfiledProcess(
        process=process,
        activities=activities,
        calls=calls,
        kinds=kinds,
        ranges=ranges,
        steps=steps,
        device=device,
        stream=stream,
        kernels=reader.kernel_names(number),
        texts=texts,
        groups={one.number: one.comm_id_hash or 0 for one in reader.communicators() if one.process == number},
    )


def _is_shown(activities: Array, calls: Array, kinds: Array) -> bool:
    """Whether what most launches enqueued is in the file: otherwise the GPU would seem idle."""
    launches = calls["start_ns"][(kinds & int(Kind.LAUNCH)) != 0]
    return 2 * int(np.isin(launches, activities["call_ns"]).sum()) >= len(launches)


def _lasting(rows: Array, least_ns: int) -> Array:
    """Rows that last so long: files may hold any numbers."""
    found: Array = rows[rows["end_ns"] - rows["start_ns"] >= least_ns]
    return found


def _kinds(calls: Array) -> Array:
    keys, places = np.unique(calls["source"] * _OPS_PER_SOURCE + calls["op"], return_inverse=True)
    kinds = np.array([_KINDS.get(int(key), 0) for key in keys], np.int64)
    found: Array = kinds[places] if len(keys) else np.zeros(0, np.int64)
    return found


def _main_stream(activities: Array) -> tuple[int, int]:
    """The GPU with the most activities, and of it the stream with the most.

    Not the one busiest longest: a collective that waits for other ranks keeps its stream busy without work.
    """
    devices, counts = np.unique(activities["device"], return_counts=True)
    device = devices[counts.argmax()]
    streams, counts = np.unique(activities["stream"][activities["device"] == device], return_counts=True)
    return int(device), int(streams[counts.argmax()])
