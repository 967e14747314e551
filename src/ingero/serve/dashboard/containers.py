"""Containers on the dashboard: GPU and CPU use of the processes of each, and the CPU time others waited for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ingero.ops import OPS
from ingero.serve.dashboard.memory import container_text
from ingero.serve.dashboard.selection import CALL_SOURCES
from ingero.serve.dashboard.state import State
from ingero.store.reader import Reader
from ingero.store.records import Container, OpTotals, Process, Window
from ingero.store.vocabulary import kind_text

_KINDS = {(int(op.source), op.code): kind_text(op.kind) for op in OPS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A traced process of a container."""

    process: int
    pid: int
    name: str
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One control group that held a traced process, or took the CPU from one; name "": no container.

    calls, launches, gpu_wait_ns (inside calls that wait for the GPU), copied_bytes, collective_bytes: exact sums of
    its traced processes, as are clocks (ns of their threads by state, null where not recorded). took_ns: how long its
    processes, traced or not, ran while traced processes of other groups waited for a CPU.
    """

    cgroup_id: str
    name: str
    container_id: str
    pod: str
    namespace: str
    orchestrator: str
    node: str
    path: str
    processes: list[Member]
    calls: int
    launches: int
    gpu_wait_ns: int
    copied_bytes: int
    collective_bytes: int
    clocks: dict[str, int] | None
    nr_throttled: int
    throttled_ns: int
    took_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers(State):
    """Control groups, those first that waited longest for their GPU."""

    containers: list[Group]


def containers(reader: Reader, window: Window, state: Mapping[str, Any]) -> Containers:
    """The containers of a window. A process counts in the cgroup it was in when its tracing began."""
    people = reader.processes()
    homes = {one.process: one.cgroup_id or 0 for one in people}
    members: dict[int, list[Process]] = defaultdict(list)
    for one in people:
        members[homes[one.process]].append(one)
    totals: dict[int, list[OpTotals]] = defaultdict(list)
    for total in reader.op_totals(window):
        totals[homes.get(total.process, 0)].append(total)
    clocks, took = _clocks(reader, window, homes), _took(reader, window, homes)
    known = (
        {container.cgroup_id: container for container in reader.containers()}
        if reader.is_recorded("raw_cgroups")
        else {}
    )
    quotas = reader.throttling(window) if reader.is_recorded("raw_cgroup_throttling") else []
    throttled = {one.cgroup_id: (one.nr_throttled, one.throttled_ns) for one in quotas}
    shown = [number for number in (members | dict.fromkeys(took)) if number in members or _is_container(known, number)]
    found = [
        _group(number, known.get(number), members.get(number, ()), totals.get(number, ()))
        | {"clocks": clocks.get(number), "took_ns": took[number]}
        | dict(zip(("nr_throttled", "throttled_ns"), throttled.get(number, (0, 0)), strict=True))
        for number in shown
    ]
    groups = [Group(**one) for one in found]
    return Containers(**state, containers=sorted(groups, key=lambda group: (-group.gpu_wait_ns, -group.took_ns)))


def _group(
    number: int, place: Container | None, members: Sequence[Process], totals: Sequence[OpTotals]
) -> dict[str, Any]:
    calls = [total for total in totals if total.source in CALL_SOURCES]
    return {
        "cgroup_id": str(number),
        "name": container_text(place) if place else "",
        "container_id": place.container_id if place else "",
        "pod": place.pod if place else "",
        "namespace": place.namespace if place else "",
        "orchestrator": place.orchestrator if place else "",
        "node": place.node if place else "",
        "path": (place.cgroup_path or "") if place else "",
        "processes": [
            Member(process=member.process, pid=member.pid, name=member.name, rank=member.rank) for member in members
        ],
        "calls": sum(call.count for call in calls),
        "launches": sum(one.count for one in _of_kind(calls, "launch")),
        "gpu_wait_ns": sum(one.sum_ns for one in _of_kind(calls, "wait")),
        "copied_bytes": sum(one.bytes for one in _of_kind(calls, "copy")),
        "collective_bytes": sum(one.bytes for one in _of_kind(calls, "collective")),
    }


def _of_kind(calls: Sequence[OpTotals], word: str) -> list[OpTotals]:
    return [call for call in calls if word in _KINDS.get((call.source, call.op), "")]


def _clocks(reader: Reader, window: Window, homes: Mapping[int, int]) -> dict[int, dict[str, int]]:
    if not reader.is_recorded("thread_state_seconds"):
        return {}
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for totals in reader.thread_state_totals(window):
        sums[homes.get(totals.process, 0)].update(asdict(totals.clocks))
    return {number: dict(clocks) for number, clocks in sums.items()}


def _took(reader: Reader, window: Window, homes: Mapping[int, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    if reader.is_recorded("raw_culprits"):
        for culprit in reader.culprits(window):
            if culprit.culprit_pid > 0 and culprit.culprit_cgroup_id not in {0, None, homes.get(culprit.process)}:
                found[culprit.culprit_cgroup_id] += culprit.ns
    return found


def _is_container(known: Mapping[int, Container], number: int) -> bool:
    return number in known and bool(container_text(known[number]))
