"""Steps, and what a profiler measured (GPU activities, user ranges, calls), as numpy structured arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_ACTIVITY = (
    "start_ns",
    "end_ns",
    "device",
    "stream",
    "kind",
    "function",
    "bytes",
    "direction",
    "host_memory",
    "call_ns",
    "communicator",
)
_RANGE = ("start_ns", "end_ns", "tid", "kind", "name")
_CALL = ("start_ns", "end_ns", "tid", "source", "op", "stack_hash")
_STEP = ("start_ns", "end_ns", "device", "stream", "how", "step_type", "launches", "collectives", "flags")

ACTIVITY_COLUMNS = "start_ns, start_ns + duration_ns, " + ", ".join(_ACTIVITY[2:])
RANGE_COLUMNS = "start_ns, start_ns + duration_ns, " + ", ".join(_RANGE[2:])
CALL_COLUMNS = "start_ns, start_ns + duration_ns, " + ", ".join(_CALL[2:])
STEP_COLUMNS = ", ".join(_STEP)


def _of_numbers(names: Sequence[str]) -> np.dtype[np.void]:
    return np.dtype([(name, "<i8") for name in names])


# One activity of a GPU. kind, direction, host_memory are numbers of texts; call_ns 0: its call is not in the recording.
ACTIVITY_DTYPE = _of_numbers(_ACTIVITY)

# One range of time as a program, its framework or a library marked it. kind and name are numbers of texts.
RANGE_DTYPE = _of_numbers(_RANGE)

# One recorded call, in short.
PROFILED_CALL_DTYPE = _of_numbers(_CALL)

# One step. how and step_type are numbers of texts.
STEP_DTYPE = _of_numbers(_STEP)


def rows_of(rows: Iterable[tuple[int, ...]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Rows in the order of the fields, one at a time: a hundred thousand as tuples take more than all they become."""
    return np.fromiter(rows, dtype)
