"""CUDA graphs: their captures as recorded, which of them failed and by what, and when graphs were launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.call_growth import kind_of
from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Bucket, Link, Part
from ingero.ops import OPS, Kind, Source
from ingero.store.records import Process, Window
from ingero.units import format_number

Array = np.ndarray[Any, np.dtype[Any]]

_KINDS = {(int(op.source), op.code): op.kind for op in OPS}
_MAKING = {key for key, kind in _KINDS.items() if kind & Kind.CAPTURE}
_NAMES = {(int(op.source), op.code): op.name for op in OPS}
_CUDA = tuple(sorted({op.source for op in OPS if op.source is not Source.NCCL}))

# cudaError_t, and CUresult by the same numbers (driver_types.h, cuda.h): what a capture cannot hold
CAPTURE_ERRORS: Mapping[int, str] = {
    900: "not permitted while a stream is captured",
    901: "the capture was invalidated by an earlier error",
    902: "it would merge two captures",
    903: "the capture began in another stream",
    904: "work on another stream was never joined",
    905: "it depends on work outside the capture",
    906: "it would wait for the legacy stream",
    907: "it depends on an event of a capture",
    908: "the capture began in another thread",
}
_INVALIDATED = 901


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCall:
    """One recorded call; ret_code 0: it succeeded."""

    name: str
    tid: int
    begin_ns: int
    end_ns: int
    ret_code: int
    handle: int
    stack_hash: int

    @property
    def reason(self) -> str:
        """Why it failed, in words."""
        known = CAPTURE_ERRORS.get(self.ret_code)
        return f"error {self.ret_code} ({known})" if known else f"error {self.ret_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """From the begin of a capture to its end, both recorded, and the instantiation that follows it."""

    begin: GraphCall
    end: GraphCall
    instantiation: GraphCall | None

    @property
    def duration_ns(self) -> int:
        """What the host spent on it: nothing is executed while a stream is captured."""
        made = self.instantiation
        return self.end.end_ns - self.begin.begin_ns + (made.end_ns - made.begin_ns if made else 0)


def graph_calls(evidence: Evidence, window: Window, process: int) -> list[GraphCall]:
    """Recorded calls that capture, instantiate or update graphs, in order of time."""
    rows = evidence.reader.call_rows(window, sources=(Source.CUDA_GRAPH,), process=process, ops=_MAKING)
    return [_call(row) for row in rows]


def captures(evidence: Evidence, window: Window, process: int) -> list[Capture]:
    """Captures that began and ended in the window."""
    threads: dict[int, list[GraphCall]] = defaultdict(list)
    for one in graph_calls(evidence, window, process):
        threads[one.tid].append(one)
    found = [capture for mine in threads.values() for capture in _of_thread(mine)]
    return sorted(found, key=lambda one: one.begin.begin_ns)


def _of_thread(calls: list[GraphCall]) -> list[Capture]:
    found: list[Capture] = []
    begin: GraphCall | None = None
    for one in calls:
        if "BeginCapture" in one.name and one.ret_code == 0:
            begin = one
        elif "EndCapture" in one.name and begin:
            found.append(Capture(begin=begin, end=one, instantiation=None))
            begin = None
        elif "Instantiate" in one.name and found and found[-1].instantiation is None and not begin:
            found[-1] = Capture(begin=found[-1].begin, end=found[-1].end, instantiation=one)
    return found


def is_failure(one: GraphCall) -> bool:
    """Whether a graph did not come about by it; an update that does not fit is answered by a new instantiation."""
    return one.ret_code != 0 and "ExecUpdate" not in one.name


def breaker(evidence: Evidence, process: int, failed: GraphCall) -> GraphCall | None:
    """The recorded call that broke a capture: the last before its end that a capture cannot hold."""
    earlier = Window(begin_ns=max(evidence.window.begin_ns, failed.begin_ns - 10_000_000_000), end_ns=failed.begin_ns)
    begins = [one for one in graph_calls(evidence, earlier, process) if "BeginCapture" in one.name]
    if not begins:
        return None
    inside = Window(begin_ns=begins[-1].begin_ns, end_ns=failed.begin_ns)
    broken = [
        _call(row)
        for row in evidence.events(inside, _CUDA, process)
        if int(row["ret_code"]) in CAPTURE_ERRORS and int(row["ret_code"]) != _INVALIDATED
    ]
    return broken[0] if broken else None


def _call(row: Any) -> GraphCall:
    return GraphCall(
        name=_NAMES.get((int(row["source"]), int(row["op"])), ""),
        tid=int(row["tid"]),
        begin_ns=int(row["start_ns"]),
        end_ns=int(row["start_ns"] + row["duration_ns"]),
        ret_code=int(row["ret_code"]),
        handle=int(row["arg1"]),
        stack_hash=int(row["stack_hash"]),
    )


def launches(evidence: Evidence, window: Window, process: int) -> tuple[float, float]:
    """Exact counts of a process in a window: launches of graphs, and of anything else."""
    graphs = others = 0.0
    for one in evidence.ops((window,), process):
        kind = _KINDS.get((one.source, one.op), Kind.NONE)
        if kind & Kind.GRAPH:
            graphs += one.count
        elif kind & Kind.LAUNCH:
            others += one.count
    return graphs, others


def users(evidence: Evidence) -> list[Process]:
    """Processes with recorded calls that make graphs."""
    rows = evidence.reader.call_rows(evidence.window, sources=(Source.CUDA_GRAPH,), ops=_MAKING)
    numbers = sorted(set(rows["process"].tolist()) & evidence.processes.keys())
    return [evidence.processes[number] for number in numbers]


def delayed_graphs(case: Case, claims: Mapping[Bucket, int]) -> Link | None:
    """That launches of graphs came late by these claims; None where none are launched or the host's way was free."""
    graphs = [one for one in case.op_changes if kind_of(one) & Kind.GRAPH and one.count > 0]
    before = sum(ns for bucket, ns in claims.items() if bucket.part in (Part.IDLE, Part.LAUNCH))
    if not graphs or before <= 0:
        return None
    count = sum(one.count for one in graphs)
    return Link(
        text=f"the launches of CUDA graphs, {format_number(count, 2)} per {case.noun}, were delayed by that",
        seen_ns=before,
        expected_ns=0,
        structure=f"{graphs[0].totals.name} is on the critical path",
        order="the GPU had nothing to do until the graph was launched",
    )
