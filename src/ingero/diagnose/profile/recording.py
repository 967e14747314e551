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
_HOST_WAIT_KIND = (
    "sync"  # kind of an activity that a profiler notes for a wait of the host: the GPU does nothing for it
)
_OPS_PER_SOURCE = 1 << 16  # more than any source has codes
_KINDS = {int(op.source) * _OPS_PER_SOURCE + op.code: int(op.kind) for op in OPS}
_NAMES = {(int(op.source), op.code): op.name for op in OPS}


@dataclass(frozen=True, kw_only=True)
class ProfiledProcess:
    """One profiled process. Arrays are those of `store.arrays.profile_arrays`, sorted by begin.

    kinds: `ops.Kind` of each call. device, stream: the GPU and its stream with most activities; the stream paces the
    process. kernels: short and full names by function. texts: the texts whose numbers are in the arrays. groups: by
    communicator, the id that all its ranks share.
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
        """When the first activity of the main GPU began; the profile does not cover the time before it."""
        return int(self._gpu_activities["start_ns"][0])

    @property
    def end_ns(self) -> int:
        """When the last activity of the main GPU ended."""
        return int(self._gpu_activities["end_ns"].max())

    @property
    def wall_ns(self) -> int:
        """The time that the profile covers."""
        return max(self.end_ns - self.begin_ns, 1)

    def covers(self, begin_ns: int, end_ns: int) -> bool:
        """Whether the profile shows the GPU in most of a step; it does not for a step that continues after its end."""
        return (begin_ns + end_ns) // 2 <= self.end_ns

    @property
    def _gpu_activities(self) -> Array:
        found: Array = self.activities[self.activities["device"] == self.device]
        return found

    def work(self) -> Array:
        """The activities of the main GPU, on all streams."""
        return self._gpu_activities

    def busy(self) -> Intervals:
        """When the main GPU was busy."""
        work = self._gpu_activities
        return united(work["start_ns"], work["end_ns"])

    def busy_stream(self) -> Intervals:
        """When the main stream was busy."""
        work = self._gpu_activities
        work = work[work["stream"] == self.stream]
        return united(work["start_ns"], work["end_ns"])

    def is_kind(self, kind: Kind) -> Array:
        """Mask of the calls of one of these kinds."""
        found: Array = (self.kinds & int(kind)) != 0
        return found

    def number(self, text: str) -> int:
        """The number of a text; -1, which no row has, if the text is not in the profile."""
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
    """The processes for which a profiler measured the GPU's work, by rank, else by GPU."""
    numbers = set(reader.profiled_processes(window))
    processes = (
        [process for process in reader.processes(only_traced=False) if process.process in numbers] if numbers else []
    )
    found = [profile for process in processes if (profile := _read(reader, window, process))]
    return sorted(found, key=lambda one: (one.process.rank is None, one.process.rank or 0, one.device))


def _read(reader: Reader, window: Window, process: Process) -> ProfiledProcess | None:
    number = process.process
    activities = _lasting_at_least(reader.gpu_activities(window, process=number), 0)
    calls = reader.profiled_calls(window, sources=_SOURCES, process=number)
    ranges = reader.user_ranges(window, process=number)
    steps = _lasting_at_least(reader.step_times(window, process=number), 1)
    columns = [(activities, ("kind", "direction", "host_memory")), (ranges, ("kind", "name"))]
    columns.append((steps, ("how", "step_type")))
    numbers = np.unique(np.concatenate([array[name] for array, names in columns for name in names]))
    texts = reader.texts(numbers) | {0: ""}
    activities = activities[[texts.get(int(kind)) != _HOST_WAIT_KIND for kind in activities["kind"]]]
    kinds = _kinds(calls)
    if not len(activities) or not _has_launched_work(activities, calls, kinds):
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
        groups={
            communicator.number: communicator.comm_id_hash or 0
            for communicator in reader.communicators()
            if communicator.process == number
        },
    )


def _has_launched_work(activities: Array, calls: Array, kinds: Array) -> bool:
    """Whether the work of most launches is in the profile: otherwise the GPU would seem idle."""
    launches = calls["start_ns"][(kinds & int(Kind.LAUNCH)) != 0]
    return 2 * int(np.isin(launches, activities["call_ns"]).sum()) >= len(launches)


def _lasting_at_least(rows: Array, least_ns: int) -> Array:
    """Rows that last at least so long: files may hold any numbers."""
    found: Array = rows[rows["end_ns"] - rows["start_ns"] >= least_ns]
    return found


def _kinds(calls: Array) -> Array:
    keys, places = np.unique(calls["source"] * _OPS_PER_SOURCE + calls["op"], return_inverse=True)
    kinds = np.array([_KINDS.get(int(key), 0) for key in keys], np.int64)
    found: Array = kinds[places] if len(keys) else np.zeros(0, np.int64)
    return found


def _main_stream(activities: Array) -> tuple[int, int]:
    """The GPU with the most activities, and its stream with the most.

    Not the stream with most busy time: a collective that waits for other ranks keeps its stream busy without work.
    """
    devices, counts = np.unique(activities["device"], return_counts=True)
    device = devices[counts.argmax()]
    streams, counts = np.unique(activities["stream"][activities["device"] == device], return_counts=True)
    return int(device), int(streams[counts.argmax()])
