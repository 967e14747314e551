"""Sync intervals, thread-state seconds, off-CPU intervals, recorded calls and samples as numpy structured arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero.store.conditions import columns
from ingero.store.vocabulary import STATE_COLUMNS, STATES

CHECKPOINTS = 8
NOT_RECORDED = -1
_AT_A_TIME = 512  # rows as tuples of Python's numbers: 2 KB for a sync interval, five times its place in an array

_SYNC_INTERVAL_NUMBERS = (
    "process",
    "pid",
    "device",
    "stream",
    "prev_sync_end_ns",
    "first_launch_ns",
    "sync_start_ns",
    "gpu_done_ns",
    "gpu_done_low_ns",
    "gpu_done_high_ns",
    "sync_end_ns",
    "idle_ns",
    "busy_ns",
    "return_delay_ns",
    "launches",
    "bytes",
    "op_set",
    "step_type",
    "source",
    "op",
    "caller",
    "graph",
    "prev_sync_tid",
    "first_launch_tid",
    "sync_tid",
    "flags",
    "checkpoint_step",
)
_OFFCPU_NUMBERS = (
    *("start_ns", "duration_ns", "process", "pid", "tid", "comm", "state", "woken_ns", "cpu"),
    *("culprit_pid", "culprit_name", "culprit_ns", "waker_kind", "waker_pid", "waker_tid", "waker_name"),
    *("futex", "stack_hash", "is_gpu_call"),
)
_CALL_NUMBERS = (
    *("id", "start_ns", "duration_ns", "process", "pid", "tid", "source", "op", "arg0", "arg1", "arg2", "stream"),
    *("ret_code", "caller", "caller_library", "detail", "cgroup_id", "comm", "flags", "stack_hash"),
)
_GPU_STREAM_NUMBERS = (
    *(
        "prev_sync_end_ns",
        "first_launch_ns",
        "sync_start_ns",
        "gpu_done_ns",
        "sync_end_ns",
        "idle_ns",
        "busy_ns",
        "return_delay_ns",
        "step_type",
        "flags",
        "launches",
        "prev_sync_tid",
    ),
    *("idle_sleep_ns", "syncs", "joined"),
)
_SYNC_INTERVAL_PARTS = ("idle", "launch", "sync")
_SECOND_NUMBERS = ("start_ns", "period_ns", "process", "threads", "switches", "involuntary_switches", "major_faults")

# One sync interval. Clocks are in the order of vocabulary.STATES, -1 where not recorded; op_set and step_type are
# numbers of texts (Reader.texts); checkpoint_ns is 0 from the first unused on.
SYNC_INTERVAL_DTYPE = np.dtype(
    [(name, "<i8") for name in _SYNC_INTERVAL_NUMBERS]
    + [(f"{part}_state_ns", "<i8", (len(STATES),)) for part in _SYNC_INTERVAL_PARTS]
    + [("checkpoint_ns", "<i8", (CHECKPOINTS,))]
)

# One sync interval of a stream in short: what finding lost time needs. Fields mean what they do in SYNC_INTERVAL_DTYPE;
# idle_sleep_ns is the clock `sleep` of the empty part, -1 where not recorded; syncs: those in a step by repetition, 0
# of a sync interval;
# joined: how many more steps are judged with it (`diagnose.run_ahead`).
GPU_STREAM_DTYPE = np.dtype([(name, "<i8") for name in _GPU_STREAM_NUMBERS])

# One mark of progress; is_full: of a launch that waited for room in the queue. queued: 0 where it is not known.
MARK_DTYPE = np.dtype(
    [(name, "<i8") for name in ("device", "stream", "time_ns", "position", "queued", "blocked_ns", "is_full")]
)

# The exact sums of a stream, and after them the clocks of the three parts.
GPU_STREAM_SUMS = (
    *(
        "sync_intervals",
        "incomplete",
        "launches",
        "bytes",
        "wall_ns",
        "idle_ns",
        "idle_unknown_ns",
        "busy_ns",
        "launch_ns",
    ),
    *(
        "launch_unknown_ns",
        "return_delay_ns",
        "return_delay_low_ns",
        "return_delay_high_ns",
        "sync_ns",
        "sync_unknown_ns",
    ),
)
STATE_SUMS = len(_SYNC_INTERVAL_PARTS) * len(STATES)

# What the threads of one process did in `period_ns` from start_ns on; major_faults: -1 where not recorded.
THREAD_STATE_SECOND_DTYPE = np.dtype(
    [(name, "<i8") for name in _SECOND_NUMBERS] + [("state_ns", "<i8", (len(STATES),))]
)

# One interval off the CPU. state, waker_kind: ids (state -1: not recorded); comm and names are numbers of texts.
OFFCPU_DTYPE = np.dtype([(name, "<i8") for name in _OFFCPU_NUMBERS])

# One recorded call or host event; caller_library, detail and comm are numbers of texts. Clocks are -1 where none exist.
CALL_DTYPE = np.dtype([(name, "<i8") for name in _CALL_NUMBERS] + [("state_ns", "<i8", (len(STATES),))])

_NUMBER_BYTES = 8

OFFCPU_COLUMNS = ", ".join(f"coalesce({name}, {NOT_RECORDED if name == 'state' else 0})" for name in _OFFCPU_NUMBERS)
CALL_COLUMNS = ", ".join(
    [f"coalesce({name}, 0)" for name in _CALL_NUMBERS]
    + [f"coalesce({clock}, {NOT_RECORDED})" for clock in STATE_COLUMNS]
)
_SAMPLE_NUMBERS = ("time_ns", "process", "pid", "tid", "state", "weight_ns", "is_collecting", "stack_hash")

# Where one thread was outside traced calls, for weight_ns from about time_ns on. state: a number of thread_states.
SAMPLE_DTYPE = np.dtype([(name, "<i8") for name in _SAMPLE_NUMBERS])
MEMORY_SECOND_COLUMNS = (
    "start_ns",
    "period_ns",
    "process",
    "memory_kind",
    "live_bytes",
    "live_count",
    "peak_bytes",
    "unpaired",
)

# What one process held of one kind of memory (`ops.MemoryKind`) `period_ns` after start_ns and until the next
# row, or the end of the process. peak_bytes: the most so far. unpaired: calls that do not count in it, so far.
MEMORY_SECOND_DTYPE = np.dtype([(name, "<i8") for name in MEMORY_SECOND_COLUMNS])

SITE_LEVEL_COLUMNS = ("start_ns", "period_ns", "process", "source", "op", "caller", "stack_hash", "live_bytes")
NCCL_CALL_COLUMNS = (
    *("session", "process", "op", "comm_id_hash", "rank", "nranks", "sequence", "start_ns", "duration_ns", "bytes"),
    "ret_code",
)

# The same of one call site.
SITE_LEVEL_DTYPE = np.dtype([(name, "<i8") for name in SITE_LEVEL_COLUMNS])

# One recorded NCCL call. comm_id_hash, nranks, sequence: 0 where not known; rank: -1.
NCCL_CALL_DTYPE = np.dtype([(name, "<i8") for name in NCCL_CALL_COLUMNS])

SYNC_INTERVAL_COLUMNS = ", ".join(
    [f"e.{name}" for name in _SYNC_INTERVAL_NUMBERS]
    + [f"coalesce(e.{part}_{clock}, {NOT_RECORDED})" for part in _SYNC_INTERVAL_PARTS for clock in STATE_COLUMNS]
)
GPU_STREAM_COLUMNS = ", ".join([*_GPU_STREAM_NUMBERS[:-3], f"coalesce(idle_sleep_ns, {NOT_RECORDED})"])
SAMPLE_COLUMNS = ", ".join(_SAMPLE_NUMBERS)
THREAD_STATE_SECOND_COLUMNS = ", ".join(
    (columns(_SECOND_NUMBERS[:-1]), f"coalesce(major_faults, {NOT_RECORDED})", *STATE_COLUMNS)
)


def sync_intervals(rows: Iterable[Sequence[Any]]) -> npt.NDArray[np.void]:
    """Rows of `SYNC_INTERVAL_COLUMNS`, the checkpoint bytes last, as an array of `SYNC_INTERVAL_DTYPE`."""
    return _joined((_sync_intervals(some) for some in _some_at_a_time(rows)), SYNC_INTERVAL_DTYPE)


def _sync_intervals(rows: Sequence[Sequence[Any]]) -> npt.NDArray[np.void]:
    array = _from_rows([row[:-1] for row in rows], SYNC_INTERVAL_DTYPE)
    for index, row in enumerate(rows):
        if row[-1]:
            times = np.frombuffer(row[-1], dtype="<i8")[:CHECKPOINTS]
            array["checkpoint_ns"][index, : len(times)] = times
    return array


def gpu_stream(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `GPU_STREAM_COLUMNS` as an array of `GPU_STREAM_DTYPE`."""
    return _array(rows, GPU_STREAM_DTYPE)


def without_clocks(gpu_stream: npt.NDArray[np.void], *, process: int, pid: int) -> npt.NDArray[np.void]:
    """`GPU_STREAM_DTYPE` as `SYNC_INTERVAL_DTYPE`: fields missing in the short form are 0, clocks are not recorded."""
    array = np.zeros(len(gpu_stream), SYNC_INTERVAL_DTYPE)
    for name in set(_GPU_STREAM_NUMBERS) & set(_SYNC_INTERVAL_NUMBERS):
        array[name] = gpu_stream[name]
    array["process"], array["pid"] = process, pid
    array["gpu_done_low_ns"] = array["gpu_done_high_ns"] = gpu_stream["gpu_done_ns"]
    array["first_launch_tid"] = array["sync_tid"] = gpu_stream["prev_sync_tid"]
    for part in _SYNC_INTERVAL_PARTS:
        array[f"{part}_state_ns"] = NOT_RECORDED
    return array


def thread_state_seconds(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `THREAD_STATE_SECOND_COLUMNS` as an array of `THREAD_STATE_SECOND_DTYPE`."""
    return _array(rows, THREAD_STATE_SECOND_DTYPE)


def offcpu(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `OFFCPU_COLUMNS` as an array of `OFFCPU_DTYPE`."""
    return _array(rows, OFFCPU_DTYPE)


def calls(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `CALL_COLUMNS` as an array of `CALL_DTYPE`."""
    return _array(rows, CALL_DTYPE)


def samples(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `SAMPLE_COLUMNS` as an array of `SAMPLE_DTYPE`."""
    return _array(rows, SAMPLE_DTYPE)


def memory_seconds(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `MEMORY_SECOND_COLUMNS` as an array of `MEMORY_SECOND_DTYPE`."""
    return _array(rows, MEMORY_SECOND_DTYPE)


def site_levels(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `call_queries.SITE_LEVELS` as an array of `SITE_LEVEL_DTYPE`."""
    return _array(rows, SITE_LEVEL_DTYPE)


def nccl_calls(rows: Iterable[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `call_queries.NCCL_CALLS` as an array of `NCCL_CALL_DTYPE`."""
    return _array(rows, NCCL_CALL_DTYPE)


def _array(rows: Iterable[Sequence[int]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return _joined((_from_rows(some, dtype) for some in _some_at_a_time(rows)), dtype)


def _some_at_a_time(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    rest = iter(rows)
    while some := list(islice(rest, _AT_A_TIME)):
        yield some


def _joined(parts: Iterable[npt.NDArray[np.void]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _from_rows(rows: Sequence[Sequence[int]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Rows in the order of the fields, all of which are 64-bit numbers; fields at the end that they lack are 0."""
    flat = np.zeros((len(rows), dtype.itemsize // _NUMBER_BYTES), np.int64)
    numbers = np.array(rows, dtype=np.int64)
    flat[:, : numbers.shape[1]] = numbers
    return flat.view(dtype).reshape(len(rows))
