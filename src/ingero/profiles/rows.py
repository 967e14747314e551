"""Rows of a recording from one process of a profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.decode.native.names import shorten
from ingero.ops import BY_ID, Kind
from ingero.profiles.model import UNKNOWN, ActivityKind, Array, Direction, Frame, HostMemory, Profile, RangeKind
from ingero.store import histograms, tables
from ingero.store.tables import Column, Table
from ingero.units import SECOND_NS

# cudaMemcpyKind by direction, where the call has it as an argument
_MEMCPY_KINDS = {Direction.HOST_TO_GPU: 1, Direction.GPU_TO_HOST: 2, Direction.GPU_TO_GPU: 3, Direction.HOST_TO_HOST: 0}
_MEMCPY_KIND = "cudaMemcpyKind"
_HASH_BYTES = 7  # a positive number for SQLite
_SIGNED_64 = 1 << 63

Rows = Iterator[tuple[Table, int, dict[str, Column]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the rows of a process belong. text: the number of a text; communicators: numbers by index of the group."""

    process: int
    text: Callable[[str], int]
    communicators: Sequence[int] = ()


def function_id(name: str) -> int:
    """The number of a kernel, equal in every recording; 0 for a call that launches none."""
    return int.from_bytes(hashlib.sha1(name.encode()).digest()[:_HASH_BYTES], "big") if name else 0


def rows_of(profile: Profile, place: Place) -> Rows:
    """Every row of a process but its own, its steps' and its communicators'."""
    yield from _threads(profile, place)
    stacks, stack_rows = _stacks(profile, place)
    yield from stack_rows
    functions = _functions(profile)
    yield from _kernels(profile, place, functions)
    yield from _events(profile, place, functions, stacks)
    yield from _sums(profile, place, functions)
    yield from _activities(profile, place, functions)
    yield from _ranges(profile, place)


def _threads(profile: Profile, place: Place) -> Rows:
    tids = np.unique(np.concatenate([profile.calls["tid"], profile.ranges["tid"]])).tolist()
    names = [profile.threads.get(tid, profile.name) for tid in tids]
    times = {"first_seen_ns": profile.begin_ns, "last_seen_ns": profile.end_ns}
    yield tables.THREADS, len(tids), {"process": place.process, "tid": tids, "name": names, **times}


def _stacks(profile: Profile, place: Place) -> tuple[Array, Rows]:
    """The hash of each stack by its number, and the rows."""
    texts = [json.dumps(_stored(frames), ensure_ascii=False) for frames in profile.stacks]
    keys = [f"{place.process}\n{text}" if frames else "" for text, frames in zip(texts, profile.stacks, strict=True)]
    hashes = [function_id(key) for key in keys]
    stored = {found: text for found, text in zip(hashes, texts, strict=True) if found}
    columns: dict[str, Column] = {"hash": list(stored), "ips": "[]", "frames": list(stored.values())}
    return np.array(hashes, np.int64), iter([(tables.STACKS, len(stored), {**columns, "process": place.process})])


def _stored(frames: Sequence[Frame]) -> list[dict[str, str | int]]:
    """Python frames; functions without a line only where they are the innermost: what called into the GPU's library."""
    found: list[dict[str, str | int]] = []
    for frame in frames:
        if frame.file:
            found.append({"py_file": frame.file, "py_func": frame.function, "py_line": frame.line})
        elif not found or "symbol" in found[-1]:
            found.append({"symbol": frame.function, "file": ""})
    return found


def _functions(profile: Profile) -> Array:
    """The number of a kernel by the index of its name; 0 where the text is no kernel's."""
    found = np.zeros(max(len(profile.texts), 1), np.int64)
    kernels = profile.activities["name"][profile.activities["kind"] == ActivityKind.KERNEL]
    for index in np.unique(kernels).tolist():
        found[index] = function_id(profile.texts[index])
    return found


def _kernels(profile: Profile, place: Place, functions: Array) -> Rows:
    names = {int(functions[index]): profile.texts[index] for index in np.flatnonzero(functions).tolist()}
    columns: dict[str, Column] = {"function": list(names), "name": list(names.values())}
    columns["short_name"] = [shorten(name) or name for name in names.values()]
    yield tables.KERNELS, len(names), {"process": place.process, "source_of_name": "profiler", **columns}


def _by_op(calls: Array, value: Callable[[int], int]) -> Array:
    """A value of each call's operation."""
    table = np.array([value(op) if op in BY_ID else 0 for op in range(256)])
    found: Array = table[calls["op"]]
    return found


def _sources(calls: Array) -> dict[str, Column]:
    return {
        "source": _by_op(calls, lambda op: int(BY_ID[op].source)),
        "op": _by_op(calls, lambda op: BY_ID[op].code),
    }


def _events(profile: Profile, place: Place, functions: Array, stacks: Array) -> Rows:
    calls = profile.calls
    has_kind = _by_op(calls, lambda op: int(_extra(op) == _MEMCPY_KIND))
    kinds = np.array([_MEMCPY_KINDS.get(Direction(number), 0) for number in range(len(Direction))])
    yield (
        tables.EVENTS,
        len(calls),
        {
            "start_ns": calls["start_ns"],
            "duration_ns": calls["end_ns"] - calls["start_ns"],
            "process": place.process,
            "pid": profile.pid,
            "tid": calls["tid"],
            **_sources(calls),
            "arg0": calls["bytes"],
            "arg2": np.where(has_kind != 0, kinds[calls["direction"]], 0),
            "stream": np.where(calls["stream"] == UNKNOWN, 0, calls["stream"]),
            "gpu_id": calls["device"],
            "function": functions[calls["function"]],
            "comm": place.text(profile.name),
            "stack_hash": stacks[calls["stack"]],
        },
    )


def _extra(op: int) -> str:
    argument = BY_ID[op].extra
    return argument.name if argument else ""


def _sums(profile: Profile, place: Place, functions: Array) -> Rows:
    """Sums of each second and operation, and of each second and kernel."""
    calls = profile.calls
    seconds = calls["start_ns"] // SECOND_NS
    nested = dict(profile.nested)
    for second, op, mine in _groups(seconds, calls["op"]):
        durations = calls["end_ns"][mine] - calls["start_ns"][mine]
        known = BY_ID[op]
        sums: dict[str, Column] = {"count": len(mine), "sum_ns": int(durations.sum()), "max_ns": int(durations.max())}
        sums["bytes"] = int(calls["bytes"][mine].sum())
        key: dict[str, Column] = {"start_ns": second * SECOND_NS, "process": place.process}
        key |= {"source": int(known.source), "op": known.code}
        inner = {"recorded": len(mine), "nested": nested.pop(op, 0)}
        yield tables.OP_STATS, 1, {**key, **sums, **inner}
        histogram = histograms.pack(histograms.count(durations))
        yield tables.CALL_SITES, 1, {**key, **sums, "period_s": 1, "histogram": histogram}
    is_launch = _by_op(calls, lambda op: int(bool(BY_ID[op].kind & Kind.LAUNCH))) != 0
    launched = np.where(is_launch, calls["function"], 0)
    for second, name, mine in _groups(seconds, launched):
        if name:
            place_of = {"start_ns": second * SECOND_NS, "process": place.process, "function": int(functions[name])}
            yield tables.KERNEL_LAUNCHES, 1, {**place_of, "count": len(mine)}


def _groups(first: Array, second: Array) -> Iterator[tuple[int, int, Array]]:
    """Each pair of values with the indexes that have it."""
    order = np.lexsort((second, first))
    if len(order):
        changes = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
        for mine in np.split(order, np.flatnonzero(changes) + 1):
            yield int(first[mine[0]]), int(second[mine[0]]), mine


def _activities(profile: Profile, place: Place, functions: Array) -> Rows:
    rows = profile.activities
    communicators = np.array([*place.communicators, 0])  # [-1] is the last
    yield (
        tables.GPU_ACTIVITIES,
        len(rows),
        {
            "process": place.process,
            "device": rows["device"],
            "stream": np.where(rows["stream"] == UNKNOWN, 0, rows["stream"]),
            "start_ns": rows["start_ns"],
            "duration_ns": rows["end_ns"] - rows["start_ns"],
            "kind": _numbers(place, ActivityKind)[rows["kind"]],
            "function": np.where(rows["kind"] == ActivityKind.KERNEL, functions[rows["name"]], 0),
            "bytes": rows["bytes"],
            "direction": _numbers(place, Direction)[rows["direction"]],
            "host_memory": _numbers(place, HostMemory)[rows["host_memory"]],
            "call_ns": rows["call_ns"],
            "communicator": communicators[rows["group"]],
        },
    )


def _ranges(profile: Profile, place: Place) -> Rows:
    rows = profile.ranges
    used = {index: place.text(profile.texts[index]) for index in np.unique(rows["name"]).tolist()}
    yield (
        tables.USER_RANGES,
        len(rows),
        {
            "process": place.process,
            "tid": rows["tid"],
            "start_ns": rows["start_ns"],
            "duration_ns": rows["end_ns"] - rows["start_ns"],
            "kind": _numbers(place, RangeKind)[rows["kind"]],
            "name": [used[index] for index in rows["name"].tolist()],
        },
    )


def _numbers(place: Place, kinds: type[ActivityKind | Direction | HostMemory | RangeKind]) -> Array:
    """The number of each kind's published name, by its value; 0 for an unknown one."""
    found = np.zeros(max(kinds) + 1, np.int64)
    for kind in kinds:
        found[kind] = 0 if kind.name == "UNKNOWN" else place.text(kind.name.lower())
    return found
