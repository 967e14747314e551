"""Reads the ground-truth file: what the simulated libraries themselves saw of every call, wait and sync."""

from __future__ import annotations

import glob as globbing
import mmap
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero.demo.gpusim import layout
from ingero.errors import IngeroError

_HEADER = (Path(__file__).parent / "common" / "truth.h").read_text(encoding="utf-8")
_FILE_HEADER = layout.struct(_HEADER, "gpusim_truth_header")
_FUNCTION = layout.struct(_HEADER, "gpusim_truth_function")
_SYNC = layout.struct(_HEADER, "gpusim_truth_sync")
_INTERVAL_END = layout.struct(_HEADER, "gpusim_truth_drain")
_COLLECTIVE = layout.struct(_HEADER, "gpusim_truth_collective")
_KERNEL = layout.struct(_HEADER, "gpusim_truth_kernel")
_MAGIC = layout.constant(_HEADER, "GPUSIM_TRUTH_MAGIC")
_FUNCTIONS = layout.constant(_HEADER, "GPUSIM_TRUTH_FUNCTIONS")
_SYNCS = layout.constant(_HEADER, "GPUSIM_TRUTH_SYNCS")
_INTERVAL_ENDS = layout.constant(_HEADER, "GPUSIM_TRUTH_DRAINS")
_COLLECTIVES = layout.constant(_HEADER, "GPUSIM_TRUTH_COLLECTIVES")
_KERNELS = layout.constant(_HEADER, "GPUSIM_TRUTH_KERNELS")
_KERNELS_HEADER = np.dtype([("lock", "u8"), ("count", "u8")])

Array = npt.NDArray[Any]


class TruthError(IngeroError):
    """A file that is not a ground-truth file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of one function: `outer` came from the application, `nested` from inside another counted call."""

    layer: str
    name: str
    outer: int
    """Calls that returned."""
    outer_in_flight: int
    outer_ns: int
    outer_max_ns: int
    nested: int
    nested_in_flight: int
    nested_ns: int
    errors: int

    @property
    def total(self) -> int:
        """How often the function was entered and left, nested calls included."""
        return self.outer + self.nested


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The ground truth of one run. Times are CLOCK_MONOTONIC ns; `common/truth.h` documents every field."""

    calls: dict[tuple[str, str], Calls]
    """By (layer, function name); the layers are runtime, driver and nccl. Functions never entered are left out."""
    syncs: Array
    """Waits for a device, oldest first: stream pid tid device function enter_ns device_end_ns return_ns."""
    interval_ends: Array
    """Ends of sync intervals, oldest first: stream pid tid device function enqueues first_enqueue_ns enter_ns
    device_end_ns return_ns begin_ns, where begin_ns is the return of the previous sync of the same stream (0: there
    was none)."""
    function_names: list[str]
    """The name that the `function` field of a record is the index of."""
    syncs_lost: int
    """Records that newer ones have overwritten."""
    interval_ends_lost: int
    collectives: Array
    """NCCL operations that ranks have called, oldest first, with the communicator and bytes of each."""
    launches: dict[str, int]
    """By kernel name, as the driver was given it."""

    def count(self, name: str) -> int:
        """Calls of a function that came from the application, in whatever layer it is."""
        return sum(calls.outer for (_, function), calls in self.calls.items() if function == name)


def read(path: Path | str) -> Truth:
    """Read one file; the processes that write it may still run.

    Raises:
        TruthError: it is missing, or something else.
    """
    return _merge([_read(Path(path))])


def read_all(pattern: Path | str) -> Truth:
    """Read and add up the files of a run that wrote one per process; `%p` in the file name matches any pid.

    Raises:
        TruthError: no file matches.
    """
    folder, name = Path(pattern).parent, Path(pattern).name
    paths = sorted(folder.glob(globbing.escape(name).replace("%p", "[0-9]*")))
    if not paths:
        raise TruthError(f"no ground-truth file matches {pattern}", hint="set GPUSIM_TRACE before the program starts")
    return _merge([_read(path) for path in paths])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    functions: Array
    syncs: Array
    interval_ends: Array
    syncs_lost: int
    interval_ends_lost: int
    collectives: Array
    kernels: Array


def _read(path: Path) -> _Raw:
    data = _mapped(path)
    syncs_at = _FILE_HEADER.itemsize + _FUNCTIONS * _FUNCTION.itemsize
    interval_ends_at = syncs_at + _SYNCS * _SYNC.itemsize
    collectives_at = interval_ends_at + _INTERVAL_ENDS * _INTERVAL_END.itemsize
    header = np.frombuffer(data, _FILE_HEADER, 1)[0]
    if header["magic"] not in {0, _MAGIC}:  # 0: its writer has only just created it
        raise TruthError(f"{path} is not a ground-truth file")
    syncs, syncs_lost = _ring(np.frombuffer(data, _SYNC, _SYNCS, syncs_at), int(header["syncs"]))
    interval_ends, interval_ends_lost = _ring(
        np.frombuffer(data, _INTERVAL_END, _INTERVAL_ENDS, interval_ends_at), int(header["drains"])
    )
    functions = np.frombuffer(data, _FUNCTION, int(header["functions"]), _FILE_HEADER.itemsize).copy()
    collectives, _ = _ring(np.frombuffer(data, _COLLECTIVE, _COLLECTIVES, collectives_at), int(header["collectives"]))
    kernels_at = collectives_at + _COLLECTIVES * _COLLECTIVE.itemsize
    kernels = int(np.frombuffer(data, _KERNELS_HEADER, 1, kernels_at)[0]["count"])
    return _Raw(
        functions=functions,
        syncs=syncs,
        interval_ends=interval_ends,
        syncs_lost=syncs_lost,
        interval_ends_lost=interval_ends_lost,
        collectives=collectives,
        kernels=np.frombuffer(data, _KERNEL, kernels, kernels_at + _KERNELS_HEADER.itemsize).copy(),
    )


def _mapped(path: Path) -> mmap.mmap | bytes:
    """The file's bytes; zeros if it is still empty."""
    size = _FILE_HEADER.itemsize + _FUNCTIONS * _FUNCTION.itemsize + _SYNCS * _SYNC.itemsize
    size += _INTERVAL_ENDS * _INTERVAL_END.itemsize + _COLLECTIVES * _COLLECTIVE.itemsize
    size += _KERNELS_HEADER.itemsize + _KERNELS * _KERNEL.itemsize
    try:
        with path.open("rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if actual == 0:
                return bytes(size)
            if actual < size:
                raise TruthError(f"{path} is too short for a ground-truth file")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise TruthError(f"cannot read {path}: {error.strerror}", hint="set GPUSIM_TRACE to this path") from error


def _ring(slots: Array, written: int) -> tuple[Array, int]:
    """Complete records in the order of writing, copied, and the number of overwritten ones."""
    used = slots[: min(written, len(slots))]  # the rest of the file was never touched
    complete = used[(used["sequence"] > 0) & (used["return_ns"] > 0)]
    order: Array = complete[np.argsort(complete["sequence"])]
    return order, max(0, written - len(slots))


def _merge(parts: list[_Raw]) -> Truth:
    functions = np.concatenate([part.functions for part in parts])
    names = [str(name, "ascii") for name in functions["name"]]
    firsts = np.cumsum([0, *(len(part.functions) for part in parts)])
    interval_ends = np.concatenate(
        [_renumbered(part.interval_ends, first) for part, first in zip(parts, firsts[:-1], strict=True)]
    )
    syncs = np.concatenate([_renumbered(part.syncs, first) for part, first in zip(parts, firsts[:-1], strict=True)])
    renumbered = [_renumbered(part.collectives, first) for part, first in zip(parts, firsts[:-1], strict=True)]
    collectives = np.concatenate(renumbered)
    return Truth(
        calls=_calls(functions),
        syncs=syncs[np.argsort(syncs["return_ns"], kind="stable")],
        interval_ends=_with_begin(interval_ends[np.argsort(interval_ends["return_ns"], kind="stable")]),
        function_names=names,
        syncs_lost=sum(part.syncs_lost for part in parts),
        interval_ends_lost=sum(part.interval_ends_lost for part in parts),
        collectives=collectives[np.argsort(collectives["return_ns"], kind="stable")],
        launches=_launches(np.concatenate([part.kernels for part in parts])),
    )


def _launches(kernels: Array) -> dict[str, int]:
    total: Counter[str] = Counter()
    for kernel in kernels:
        total[bytes(kernel["name"]).decode()] += int(kernel["launches"])
    return dict(total)


def _renumbered(records: Array, first: int) -> Array:
    """Make `function` an index into the names of all files together."""
    moved: Array = records.copy()
    moved["function"] += np.uint32(first)
    return moved


def _with_begin(interval_ends: Array) -> Array:
    """Add `begin_ns`: within one (pid, device, stream), a sync ends the sync interval that the one before it began."""
    result = np.zeros(len(interval_ends), dtype=[*_INTERVAL_END.descr, ("begin_ns", "i8")])
    for field in _INTERVAL_END.names or ():
        result[field] = interval_ends[field]
    last: dict[tuple[int, int, int], int] = {}
    for interval_end in result:
        gpu_stream = (int(interval_end["pid"]), int(interval_end["device"]), int(interval_end["stream"]))
        interval_end["begin_ns"] = last.get(gpu_stream, 0)
        last[gpu_stream] = int(interval_end["return_ns"])
    return result


def _calls(functions: Iterable[Any]) -> dict[tuple[str, str], Calls]:
    total: dict[tuple[str, str], Calls] = {}
    for row in functions:
        if row["outer_entered"] + row["nested_entered"] == 0:
            continue
        key = (str(row["layer"], "ascii"), str(row["name"], "ascii"))
        total[key] = _add(total.get(key), _from_row(key, row))
    return total


def _from_row(key: tuple[str, str], row: Any) -> Calls:
    return Calls(
        layer=key[0],
        name=key[1],
        outer=int(row["outer_returned"]),
        outer_in_flight=int(row["outer_entered"]) - int(row["outer_returned"]),
        outer_ns=int(row["outer_ns"]),
        outer_max_ns=int(row["outer_max_ns"]),
        nested=int(row["nested_returned"]),
        nested_in_flight=int(row["nested_entered"]) - int(row["nested_returned"]),
        nested_ns=int(row["nested_ns"]),
        errors=int(row["errors"]),
    )


def _add(left: Calls | None, right: Calls) -> Calls:
    if left is None:
        return right
    return Calls(
        layer=left.layer,
        name=left.name,
        outer=left.outer + right.outer,
        outer_in_flight=left.outer_in_flight + right.outer_in_flight,
        outer_ns=left.outer_ns + right.outer_ns,
        outer_max_ns=max(left.outer_max_ns, right.outer_max_ns),
        nested=left.nested + right.nested,
        nested_in_flight=left.nested_in_flight + right.nested_in_flight,
        nested_ns=left.nested_ns + right.nested_ns,
        errors=left.errors + right.errors,
    )
