"""Rows of a recording from one process of a profile."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from ingero.decode.native.names import shorten
from ingero.events import HostMemory
from ingero.ops import BY_ID
from ingero.profiles.model import UNKNOWN, ActivityKind, Array, Direction, Frame, Profile, RangeKind
from ingero.profiles.place import Place, Rows, by_op, function_id
from ingero.profiles.progress import Blocked
from ingero.profiles.sums import sum_rows
from ingero.store.writing import tables
from ingero.store.writing.tables import Column

# cudaMemcpyKind by direction, where the call has it as an argument
_MEMCPY_KINDS = {Direction.HOST_TO_GPU: 1, Direction.GPU_TO_HOST: 2, Direction.GPU_TO_GPU: 3, Direction.HOST_TO_HOST: 0}
_MEMCPY_KIND = "cudaMemcpyKind"


def rows_of(profile: Profile, place: Place, blocked: Blocked) -> Rows:
    """All rows of a process except those of the process itself, its steps and its communicators."""
    yield from _threads(profile, place)
    stacks, stack_rows = _stacks(profile, place)
    yield from stack_rows
    functions = _functions(profile)
    yield from _kernels(profile, place, functions)
    yield from _events(profile, place, functions, stacks)
    yield from sum_rows(profile, place, functions, blocked)
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
    """Frames as stored: Python frames, and native functions only at the innermost end, next to the CUDA call."""
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


def _sources(calls: Array) -> dict[str, Column]:
    return {
        "source": by_op(calls, lambda op: int(BY_ID[op].source)),
        "op": by_op(calls, lambda op: BY_ID[op].code),
    }


def _events(profile: Profile, place: Place, functions: Array, stacks: Array) -> Rows:
    calls = profile.calls
    has_kind = by_op(calls, lambda op: int(_extra(op) == _MEMCPY_KIND))
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
            "arg1": np.where(by_op(calls, _may_touch_host) != 0, calls["host_memory"], 0),
            "arg2": np.where(has_kind != 0, kinds[calls["direction"]], 0),
            "stream": np.where(calls["stream"] == UNKNOWN, 0, calls["stream"]),
            "gpu_id": calls["device"],
            "function": functions[calls["function"]],
            "comm": place.text(profile.name),
            "stack_hash": stacks[calls["stack"]],
        },
    )


def _may_touch_host(op: int) -> int:
    return int(bool(BY_ID[op].to or BY_ID[op].origin))


def _extra(op: int) -> str:
    argument = BY_ID[op].extra
    return argument.name if argument else ""


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
            "kind": _text_numbers(place, ActivityKind)[rows["kind"]],
            "function": np.where(rows["kind"] == ActivityKind.KERNEL, functions[rows["name"]], 0),
            "bytes": rows["bytes"],
            "direction": _text_numbers(place, Direction)[rows["direction"]],
            "host_memory": _text_numbers(place, HostMemory)[rows["host_memory"]],
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
            "kind": _text_numbers(place, RangeKind)[rows["kind"]],
            "name": [used[index] for index in rows["name"].tolist()],
        },
    )


def _text_numbers(place: Place, kinds: type[ActivityKind | Direction | HostMemory | RangeKind]) -> Array:
    """The number of each kind's published name, by its value; 0 for an unknown one."""
    found = np.zeros(max(kinds) + 1, np.int64)
    for kind in kinds:
        found[kind] = 0 if kind.name == "UNKNOWN" else place.text(kind.name.lower())
    return found
