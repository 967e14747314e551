"""The steps of a profile: what its calls repeat, or what the program marked where they do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.decode.steps import CALL_DTYPE, Steps, find_steps, main_stream
from ingero.ops import BY_ID, Kind
from ingero.profiles.calls import kinds_of
from ingero.profiles.model import UNKNOWN, Array, Direction, Profile, RangeKind
from ingero.profiles.progress import Blocked
from ingero.profiles.rows import Place, Rows, function_id
from ingero.store import tables
from ingero.store.tables import Column

_FUNCTION_BITS = 32  # of a key: below the operation, above the direction of a copy
_REPEATING = int(Kind.ENQUEUE | Kind.DRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Where steps begin and end, and what marks them. op: 0 where nothing does."""

    start_ns: Array
    end_ns: Array
    how: str
    kinds: Array
    tid: int
    op: int = 0
    function: int = 0  # index into texts


def step_rows(profile: Profile, place: Place, blocked: Blocked) -> Rows:
    """Rows of the steps of one process; none where nothing repeats and nothing is marked."""
    cuts = _cuts(profile)
    if cuts is None:
        return
    device, stream = _main(profile)
    op = BY_ID.get(cuts.op)
    types = _types(profile, cuts)
    yield (
        tables.STEPS,
        len(cuts.start_ns),
        {
            "process": place.process,
            "pid": profile.pid,
            "tid": cuts.tid,
            "device": device,
            "stream": stream,
            "start_ns": cuts.start_ns,
            "end_ns": cuts.end_ns,
            "how": place.text(cuts.how),
            "step_type": [place.text(name) for name in types],
            "source": int(op.source) if op else 0,
            "op": op.code if op else 0,
            "function": function_id(profile.texts[cuts.function]),
            **_sums(profile, cuts, blocked),
        },
    )


def calls_for_steps(calls: Array) -> Array:
    """The calls as `decode.steps` looks at them: those that enqueue or wait, by start."""
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
    return found[np.argsort(found["start_ns"], kind="stable")]


def _cuts(profile: Profile) -> _Cuts | None:
    calls = calls_for_steps(profile.calls)
    found = find_steps(calls) if len(calls) else None
    marks = profile.ranges[profile.ranges["kind"] == RangeKind.STEP]
    if found is None:
        return _marked(marks)
    return _repeated(found, calls, "both" if len(marks) == found.count else "repetition")


def _repeated(found: Steps, calls: Array, how: str) -> _Cuts:
    marker = found.markers[0] if found.markers else None
    tids, counts = np.unique(calls["tid"][calls["is_enqueue"]], return_counts=True)
    key = marker.key if marker else 0
    return _Cuts(
        start_ns=found.cut_ns[:-1],
        end_ns=found.cut_ns[1:],
        how=how,
        kinds=found.kind,
        tid=marker.tid if marker else int(tids[counts.argmax()]),
        op=key >> (_FUNCTION_BITS + 3),
        function=key >> 3 & ((1 << _FUNCTION_BITS) - 1),
    )


def _marked(marks: Array) -> _Cuts | None:
    """Steps as the program marked them on one thread."""
    if not len(marks):
        return None
    tids, counts = np.unique(marks["tid"], return_counts=True)
    mine = marks[marks["tid"] == tids[counts.argmax()]]
    kinds = np.zeros(len(mine), np.int64)
    tid = int(mine["tid"][0])
    return _Cuts(start_ns=mine["start_ns"], end_ns=mine["end_ns"], how="user", kinds=kinds, tid=tid)


def _main(profile: Profile) -> tuple[int, int]:
    """Device and number of the process's main stream."""
    stream = main_stream(calls_for_steps(profile.calls))
    if stream is None or stream == UNKNOWN:
        return UNKNOWN, 0
    devices, counts = np.unique(profile.calls["device"][profile.calls["stream"] == stream], return_counts=True)
    return int(devices[counts.argmax()]), stream


def _types(profile: Profile, cuts: _Cuts) -> list[str]:
    """The name of each step's type: how much a usual one of its kind enqueues, which two recordings can share."""
    calls = profile.calls
    is_enqueue = ((kinds_of(calls) & int(Kind.ENQUEUE)) != 0) & (calls["stream"] == main_stream(calls_for_steps(calls)))
    counts = _between(np.sort(calls["start_ns"][is_enqueue]), cuts)
    usual = {kind: int(np.median(counts[cuts.kinds == kind])) for kind in np.unique(cuts.kinds).tolist()}
    return [f"{usual[kind]} enqueues" for kind in cuts.kinds.tolist()]


def _between(moments: Array, cuts: _Cuts) -> Array:
    """How many of these moments each step has; ascending."""
    begins, ends = (np.searchsorted(moments, at, side="left") for at in (cuts.start_ns, cuts.end_ns))
    found: Array = ends - begins
    return found


def _sums(profile: Profile, cuts: _Cuts, blocked: Blocked) -> dict[str, Column]:
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
        "syncs": total((kinds & int(Kind.DRAIN)) != 0),
        "host_to_gpu_bytes": total(np.where(direction == Direction.HOST_TO_GPU, size, 0)),
        "gpu_to_host_bytes": total(np.where(direction == Direction.GPU_TO_HOST, size, 0)),
        "blocked_sync_ns": total(blocked.sync[order]),
        "blocked_copy_ns": total(blocked.copy[order]),
        "blocked_launch_ns": total(blocked.launch[order]),
        "blocked_alloc_ns": total(blocked.alloc[order]),
    }
