"""Sums of a profile's calls by second, as tracing keeps them: of operations, call sites, kernels and copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ingero.ops import BY_ID, Kind
from ingero.profiles.model import Array, Direction, Profile
from ingero.profiles.place import Place, Rows, by_op
from ingero.profiles.progress import Blocked
from ingero.store import histograms
from ingero.store.writing import tables
from ingero.store.writing.tables import Column
from ingero.units import SECOND_NS


def sum_rows(profile: Profile, place: Place, functions: Array, blocked: Blocked) -> Rows:
    """All sums of one process. functions: numbers of kernels by the index of their names."""
    yield from _sums(profile, place)
    yield from _launches(profile, place, functions)
    yield from _copies(profile, place, blocked)


def _sums(profile: Profile, place: Place) -> Rows:
    """Sums of each second and operation."""
    calls = profile.calls
    seconds = calls["start_ns"] // SECOND_NS
    nested = dict(profile.nested)
    for second, op, mine in _groups(seconds, calls["op"]):
        durations = calls["end_ns"][mine] - calls["start_ns"][mine]
        known = BY_ID[op]
        sums: dict[str, Column] = {"count": len(mine), "sum_ns": int(durations.sum()), "max_ns": int(durations.max())}
        sums["bytes"] = int(calls["bytes"][mine].sum())
        key: dict[str, Column] = {**_period(profile, second), "process": place.process}
        key |= {"source": int(known.source), "op": known.code}
        inner = {"recorded": len(mine), "nested": nested.pop(op, 0)}
        yield tables.OP_STATS, 1, {**key, **sums, **inner}
        histogram = histograms.pack(histograms.count(durations))
        yield tables.CALL_SITES, 1, {**key, **sums, "histogram": histogram}
    for op, count in nested.items():  # operations that have nested calls only
        known = BY_ID[op]
        place_of: dict[str, Column] = {**_period(profile, profile.begin_ns // SECOND_NS), "process": place.process}
        inner = {"source": int(known.source), "op": known.code, "count": 0, "sum_ns": 0, "nested": count}
        yield tables.OP_STATS, 1, {**place_of, **inner}


def _launches(profile: Profile, place: Place, functions: Array) -> Rows:
    """Sums of each second and kernel."""
    calls = profile.calls
    is_launch = by_op(calls, lambda op: int(bool(BY_ID[op].kind & Kind.LAUNCH))) != 0
    launched = np.where(is_launch, calls["function"], 0)
    for second, name, mine in _groups(calls["start_ns"] // SECOND_NS, launched):
        if name:
            place_of = {"process": place.process, "function": int(functions[name])}
            yield tables.KERNEL_LAUNCHES, 1, {**_period(profile, second), **place_of, "count": len(mine)}


def _period(profile: Profile, second: int) -> dict[str, Column]:
    """The part of a second that the profile covers, as columns."""
    begin_ns = max(second * SECOND_NS, profile.begin_ns)
    end_ns = max(min((second + 1) * SECOND_NS, profile.end_ns), begin_ns + 1)
    return {"start_ns": begin_ns, "period_s": (end_ns - begin_ns) / SECOND_NS}


def _groups(first: Array, second: Array) -> Iterator[tuple[int, int, Array]]:
    """Each distinct pair of values, with the indexes of its rows."""
    order = np.lexsort((second, first))
    if len(order):
        changes = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
        for mine in np.split(order, np.flatnonzero(changes) + 1):
            yield int(first[mine[0]]), int(second[mine[0]]), mine


def _copies(profile: Profile, place: Place, blocked: Blocked) -> Rows:
    """Sums of copies between host and GPUs: bytes, and the blocked time of asynchronous copies."""
    calls = profile.calls
    crosses = (calls["direction"] == Direction.HOST_TO_GPU) | (calls["direction"] == Direction.GPU_TO_HOST)
    chosen = np.flatnonzero(crosses)
    for second, op, found in _groups(calls["start_ns"][chosen] // SECOND_NS, calls["op"][chosen]):
        mine = chosen[found]
        size, is_to_gpu = calls["bytes"][mine], calls["direction"][mine] == Direction.HOST_TO_GPU
        known = BY_ID[op]
        key: dict[str, Column] = {**_period(profile, second), "process": place.process}
        key |= {"source": int(known.source), "op": known.code, "blocked_ns": int(blocked.copy[mine].sum())}
        to_gpu, to_host = int(size[is_to_gpu].sum()), int(size[~is_to_gpu].sum())
        yield tables.COPIES, 1, {**key, "host_to_gpu_bytes": to_gpu, "gpu_to_host_bytes": to_host}
