"""GPU memory on the dashboard: memory held by lines and containers over time, failures, and use of the GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ingero.ops import MemoryKind
from ingero.serve.dashboard.state import Series, State
from ingero.serve.text.memory_lines import held_memory, site_places
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import Container, MemorySite, Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

_TOP_PLACES = 8  # with a line of their own over time
_REST = "other places"
_HOST = "no container"
_ON_DEVICE = (MemoryKind.DEVICE, MemoryKind.MANAGED, MemoryKind.MAPPED)  # pinned memory is the host's


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the calls of one operation at one line, or call site, hold at the end of the window."""

    place: str
    op: str
    live_bytes: int
    live_count: int
    growth_bytes: int
    failures: int
    failed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What one process holds of one kind of memory at the end of the window.

    peak_bytes: the most so far. unpaired: calls that do not count in it; more than 0: the levels are not exact.
    """

    process: int
    pid: int
    name: str
    container: str
    kind: str
    live_bytes: int
    peak_bytes: int
    unpaired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(State):
    """Levels in bytes at times_ns: by place and by container of device memory, used_gpus of all that is in use."""

    times_ns: list[int]
    by_place: list[Series]
    by_container: list[Series]
    used_gpus: list[Series]
    places: list[Place]
    holders: list[Holder]
    foreign_frees: int
    has_allocations: bool


def memory(reader: Reader, window: Window, state: Mapping[str, Any], points: int) -> Memory:
    """GPU memory of a window. has_allocations: whether the file can hold them; else only NVML's samples."""
    times = np.linspace(window.begin_ns, window.end_ns - 1, points).astype(np.int64)
    has_allocations = reader.is_recorded("raw_allocations") and reader.is_recorded("raw_memory_seconds")
    sites = reader.memory_sites(window) if has_allocations else []
    book = StackBook(reader)
    book.read(site.stack_hash for site in sites)
    stacks = {site.stack_hash: stack for site in sites if (stack := book.of(site.stack_hash))}
    people = {process.process: process for process in reader.processes(only_traced=False)}
    ends = _ends(reader, people.values())
    places = dict(zip(map(_site, sites), site_places(sites, stacks), strict=True))
    levels = reader.memory_seconds(window) if has_allocations else None
    containers = {container.cgroup_id: container_text(container) for container in reader.containers()}
    return Memory(
        **state,
        times_ns=times.tolist(),
        by_place=_by_place(reader, window, times, sites, places, ends),
        by_container=[] if levels is None else _by_container(levels, times, people, containers, ends),
        used_gpus=_used(reader, window, times) if reader.is_recorded("raw_gpu_samples") else [],
        places=[
            Place(
                place=one.place,
                op=one.name,
                live_bytes=one.end_bytes,
                live_count=one.end_count,
                growth_bytes=one.growth_bytes,
                failures=one.failures,
                failed_bytes=one.failed_bytes,
            )
            for one in held_memory([_at_the_end(site, ends) for site in sites], stacks)
        ],
        holders=[] if levels is None else _holders(levels, people, containers, ends),
        foreign_frees=sum(site.foreign_frees for site in sites),
        has_allocations=has_allocations,
    )


def container_text(container: Container) -> str:
    """Name of a pod or a container's short id; "" for a cgroup that is no container."""
    return container.pod or container.container_id[:12]


def level_at(rows: Array, times: Array, exit_ns: int | None) -> Array:
    """The level of one holder at each time: that of the newest row that has ended; 0 before it and after exit."""
    ends = rows["start_ns"] + rows["period_ns"]
    order = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends[order], times, side="right")
    values = np.concatenate(([0], rows["live_bytes"][order]))[at]
    return values if exit_ns is None else np.where(times < exit_ns, values, 0)


def _site(site: MemorySite) -> tuple[int, ...]:
    return site.process, site.source, site.op, site.caller, site.stack_hash


def _ends(reader: Reader, processes: Iterable[Process]) -> dict[int, int]:
    """When processes ended; for those that outlived their recording, when the next one began."""
    next_ns = {one.session: after.started_ns for one, after in pairwise(reader.sessions())}
    known = (
        (process, next_ns.get(process.session) if process.exit_ns is None else process.exit_ns) for process in processes
    )
    return {one.process: end_ns for one, end_ns in known if end_ns is not None}


def _at_the_end(site: MemorySite, ends: Mapping[int, int]) -> MemorySite:
    """The bytes held at the end: 0 for a process that has ended."""
    return replace(site, end_bytes=0, end_count=0) if site.process in ends else site


def _by_place(
    reader: Reader,
    window: Window,
    times: Array,
    sites: Iterable[MemorySite],
    places: Mapping[tuple[int, ...], str],
    ends: Mapping[int, int],
) -> list[Series]:
    pinned = {_site(site) for site in sites if site.memory_kind == MemoryKind.PINNED.name.lower()}
    if not places:
        return []
    rows = reader.memory_site_levels(window)
    sums: dict[Hashable, Array] = defaultdict(lambda: np.zeros(len(times), np.int64))
    for key, mine in _split(rows, ("process", "source", "op", "caller", "stack_hash")):
        if key in places and key not in pinned:
            sums[places[key]] += level_at(mine, times, ends.get(key[0]))
    return _top(sums)


def _by_container(
    levels: Array,
    times: Array,
    people: Mapping[int, Process],
    containers: Mapping[int, str],
    ends: Mapping[int, int],
) -> list[Series]:
    device = levels[np.isin(levels["memory_kind"], [int(kind) for kind in _ON_DEVICE])]
    sums: dict[Hashable, Array] = defaultdict(lambda: np.zeros(len(times), np.int64))
    for key, mine in _split(device, ("process", "memory_kind")):
        where = _container(people.get(key[0]), containers) or _HOST
        sums[where] += level_at(mine, times, ends.get(key[0]))
    return _top(sums)


def _used(reader: Reader, window: Window, times: Array) -> list[Series]:
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for sample in reader.gpu_samples(window):
        if sample.memory_used_bytes is not None:
            known[sample.uuid].append((sample.time_ns, sample.memory_used_bytes))
    found = []
    for uuid, samples in known.items():
        at = np.searchsorted([time_ns for time_ns, _ in samples], times, side="right")
        levels = (None, *(used for _, used in samples))  # before the first sample it is not known
        found.append(Series(name=uuid, values=[levels[place] for place in at]))
    return found


def _holders(
    levels: Array, people: Mapping[int, Process], containers: Mapping[int, str], ends: Mapping[int, int]
) -> list[Holder]:
    found = []
    for (number, kind), mine in _split(levels, ("process", "memory_kind")):
        process, newest = people.get(number), mine[-1]
        found.append(
            Holder(
                process=number,
                pid=process.pid if process else 0,
                name=process.name if process else "",
                container=_container(process, containers),
                kind=MemoryKind(kind).name.lower() if kind in set(MemoryKind) else str(kind),
                live_bytes=0 if number in ends else int(newest["live_bytes"]),
                peak_bytes=int(mine["peak_bytes"].max()),
                unpaired=int(mine["unpaired"].max()),
            )
        )
    return sorted(found, key=lambda one: -one.peak_bytes)


def _split(rows: Array, names: tuple[str, ...]) -> list[tuple[tuple[int, ...], Array]]:
    """Rows by the values of these columns, each part in its order."""
    if not len(rows):
        return []
    keys, groups = np.unique(rows[list(names)], return_inverse=True)
    return [(tuple(int(value) for value in key), rows[groups == number]) for number, key in enumerate(keys)]


def _top(sums: Mapping[Hashable, Array]) -> list[Series]:
    """The highest values, and the sum of all others."""
    ranked = sorted(sums.items(), key=lambda item: -int(item[1].max()))
    found = [Series(name=str(name), values=values.tolist()) for name, values in ranked[:_TOP_PLACES] if values.any()]
    rest = [values for _, values in ranked[_TOP_PLACES:]]
    if rest:
        found.append(Series(name=_REST, values=np.sum(rest, axis=0).tolist()))
    return found


def _container(process: Process | None, containers: Mapping[int, str]) -> str:
    return containers.get(process.cgroup_id or 0, "") if process else ""
