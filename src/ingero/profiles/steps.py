"""Finds the steps of a profile: by the repetition of its calls, or else by the program's marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.decode.steps import CALL_DTYPE, FoundSteps, find_steps, main_stream
from ingero.events import SyncIntervalFlag
from ingero.ops import BY_ID, Kind
from ingero.profiles.calls import kinds_of
from ingero.profiles.intervals import owners
from ingero.profiles.model import UNKNOWN, ActivityKind, Array, Direction, Profile, RangeKind
from ingero.profiles.place import Place, Rows, function_id
from ingero.profiles.progress import Blocked
from ingero.store.writing import tables
from ingero.store.writing.tables import Column

_FUNCTION_BITS = 32  # bits of a key between the operation and the direction of a copy
_WORK = ("launches", "copies", "collectives")  # the work that a step type is named by
_REPEATING = int(Kind.ENQUEUE | Kind.SYNC)
_MIN_MARKED_RATIO = 0.9  # of the work lies within the program's marks: these are then its steps
_MIN_MARKS = 2  # a single mark may enclose a whole loop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """The start and end of each step, and the call that marks them. op: 0 without such a call."""

    start_ns: Array
    end_ns: Array
    how: str
    kinds: Array
    tid: int
    op: int = 0
    function: int = 0  # index into texts


def step_rows(profile: Profile, place: Place, blocked: Blocked) -> Rows:
    """The rows of the steps of one process; none where nothing repeats and nothing is marked."""
    cuts = _cuts(profile)
    if cuts is None:
        return
    device, stream = _main_stream_of(profile)
    sums = _sums(profile, cuts, blocked)
    known: dict[str, Column] = {"process": place.process, "pid": profile.pid, "tid": cuts.tid}
    known |= {"device": device, "stream": stream, "start_ns": cuts.start_ns, "end_ns": cuts.end_ns}
    known |= {"how": place.text(cuts.how), "flags": int(SyncIntervalFlag.STEP)}
    known["step_type"] = [place.text(name) for name in _types(cuts, sums)]
    op = BY_ID.get(cuts.op)
    if op:
        known |= {"source": int(op.source), "op": op.code, "function": function_id(profile.texts[cuts.function])}
    yield tables.STEPS, len(cuts.start_ns), {**known, **sums}


def calls_for_steps(calls: Array) -> Array:
    """The calls that enqueue or wait, in the form of `decode.steps`, sorted by start."""
    kinds = kinds_of(calls)
    chosen = calls[(kinds & _REPEATING) != 0]
    kinds = kinds_of(chosen)
    found = np.zeros(len(chosen), CALL_DTYPE)
    for name in ("start_ns", "end_ns", "tid", "stream"):
        found[name] = chosen[name]
    found["key"] = (
        (chosen["op"].astype(np.int64) << (_FUNCTION_BITS + 3))
        | (chosen["function"].astype(np.int64) << 3)
        | chosen["direction"]
    )
    found["is_enqueue"] = (kinds & int(Kind.ENQUEUE)) != 0
    found["is_launch"] = (kinds & int(Kind.LAUNCH | Kind.GRAPH)) == int(Kind.LAUNCH)
    ordered: Array = found[np.argsort(found["start_ns"], kind="stable")]
    return ordered


def are_launches_distinguished(calls: Array) -> bool:
    """Whether the kernel is known for most launches: without GPU activities all launches look alike."""
    kinds = kinds_of(calls)
    launches = calls["function"][(kinds & int(Kind.LAUNCH | Kind.GRAPH)) == int(Kind.LAUNCH)]
    return 2 * int((launches != 0).sum()) >= len(launches)


def _work_for_steps(profile: Profile) -> Array:
    """The calls, or the GPU activities where the file has no call that enqueues, which are in the same order."""
    calls = calls_for_steps(profile.calls)
    if calls["is_enqueue"].any():
        return calls if are_launches_distinguished(profile.calls) else calls[:0]
    work = profile.activities[profile.activities["kind"] != ActivityKind.SYNC]
    found = np.zeros(len(work), CALL_DTYPE)
    for name in ("start_ns", "end_ns", "stream"):
        found[name] = work[name]
    found["key"] = (work["name"].astype(np.int64) << 3) | work["direction"]
    found["is_enqueue"], found["is_launch"] = True, work["kind"] == ActivityKind.KERNEL
    return found


def _cuts(profile: Profile) -> _Cuts | None:
    calls = _work_for_steps(profile)
    found = find_steps(calls) if len(calls) else None
    marks = _marks(profile)
    if found is not None and len(marks) == found.count:
        return _repeated_cuts(found, calls, "both", _from_first_mark(found.cut_ns, marks))
    if found is None or _cover_the_work(marks, calls):
        return _marked_cuts(marks)
    return _repeated_cuts(found, calls, "repetition", found.cut_ns)


def _marks(profile: Profile) -> Array:
    """The steps that the program marked on one thread, without nested ones."""
    marks: Array = profile.ranges[profile.ranges["kind"] == RangeKind.STEP]
    if not len(marks):
        return marks
    tids, counts = np.unique(marks["tid"], return_counts=True)
    mine = marks[marks["tid"] == tids[counts.argmax()]]
    mine = mine[owners(mine) == np.arange(len(mine))]
    found: Array = mine[np.argsort(mine["start_ns"], kind="stable")]
    return found


def _cover_the_work(marks: Array, calls: Array) -> bool:
    """Whether the marks cover the program's work: then they are its steps, and what repeats inside is a layer."""
    if len(marks) < _MIN_MARKS:
        return False
    begins = calls["start_ns"][calls["is_enqueue"]]
    is_within = (begins >= marks["start_ns"][0]) & (begins < marks["end_ns"].max())
    return bool(is_within.mean() >= _MIN_MARKED_RATIO)


def _from_first_mark(cut_ns: Array, marks: Array) -> Array:
    """The cuts with the first one at the first mark: no call before it could show where that step starts."""
    first_ns = min(int(cut_ns[0]), int(marks["start_ns"].min()))
    return np.concatenate([[first_ns], cut_ns[1:]])


def _repeated_cuts(found: FoundSteps, calls: Array, how: str, cut_ns: Array) -> _Cuts:
    marker = found.markers[0] if found.markers else None
    tids, counts = np.unique(calls["tid"][calls["is_enqueue"]], return_counts=True)
    key = marker.key if marker else 0
    return _Cuts(
        start_ns=cut_ns[:-1],
        end_ns=cut_ns[1:],
        how=how,
        kinds=found.kind,
        tid=marker.tid if marker else int(tids[counts.argmax()]),
        op=key >> (_FUNCTION_BITS + 3),
        function=key >> 3 & ((1 << _FUNCTION_BITS) - 1),
    )


def _marked_cuts(marks: Array) -> _Cuts | None:
    """The steps that the program marked; None where there are no marks."""
    if not len(marks):
        return None
    kinds, tid = np.zeros(len(marks), np.int64), int(marks["tid"][0])
    return _Cuts(start_ns=marks["start_ns"], end_ns=marks["end_ns"], how="user", kinds=kinds, tid=tid)


def _main_stream_of(profile: Profile) -> tuple[int, int]:
    """The device and number of the process's main stream."""
    calls = _work_for_steps(profile)
    stream = main_stream(calls)
    if stream is None or stream == UNKNOWN:
        return UNKNOWN, 0
    rows = profile.calls if (profile.calls["stream"] == stream).any() else profile.activities
    devices, counts = np.unique(rows["device"][rows["stream"] == stream], return_counts=True)
    return int(devices[counts.argmax()]), stream


def _types(cuts: _Cuts, sums: Mapping[str, Array]) -> list[str]:
    """The name of each step's type: the median work of its kind, which two recordings can share."""
    names = {
        kind: _type([int(np.median(sums[name][cuts.kinds == kind])) for name in _WORK])
        for kind in set(cuts.kinds.tolist())
    }
    return [names[kind] for kind in cuts.kinds.tolist()]


def _type(medians: Sequence[int]) -> str:
    parts = [f"{count} {name}" for count, name in zip(medians, _WORK, strict=True)]
    return ", ".join(parts if medians[-1] else parts[:-1])


def _sums(profile: Profile, cuts: _Cuts, blocked: Blocked) -> dict[str, Array]:
    calls = profile.calls
    order = np.argsort(calls["start_ns"], kind="stable")
    begins, kinds = calls["start_ns"][order], kinds_of(calls)[order]
    first, last = (np.searchsorted(begins, at, side="left") for at in (cuts.start_ns, cuts.end_ns))

    def total(values: Array) -> Array:
        sums = np.append(0, np.cumsum(values.astype(np.int64)))
        found: Array = sums[last] - sums[first]
        return found

    size, direction = calls["bytes"][order], calls["direction"][order]
    return {
        "launches": total((kinds & int(Kind.LAUNCH)) != 0),
        "copies": total((kinds & int(Kind.COPY)) != 0),
        "collectives": total((kinds & int(Kind.COLLECTIVE)) != 0),
        "syncs": total((kinds & int(Kind.SYNC)) != 0),
        "host_to_gpu_bytes": total(np.where(direction == Direction.HOST_TO_GPU, size, 0)),
        "gpu_to_host_bytes": total(np.where(direction == Direction.GPU_TO_HOST, size, 0)),
        "blocked_sync_ns": total(blocked.sync[order]),
        "blocked_copy_ns": total(blocked.copy[order]),
        "blocked_launch_ns": total(blocked.launch[order]),
        "blocked_alloc_ns": total(blocked.alloc[order]),
    }
