"""CUDA graphs: recorded captures, the calls that broke them, and how often graphs were launched."""

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

_KIND_BY_OP = {(int(op.source), op.code): op.kind for op in OPS}
_GRAPH_MAKING_OPS = {key for key, kind in _KIND_BY_OP.items() if kind & Kind.CAPTURE}
_NAME_BY_OP = {(int(op.source), op.code): op.name for op in OPS}
_CUDA_SOURCES = tuple(sorted({op.source for op in OPS if op.source is not Source.NCCL}))

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
_INVALIDATED = 901  # follows another error, and does not say which call broke the capture


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCall:
    """One recorded call that captures, instantiates or updates a graph; ret_code 0: success."""

    name: str
    tid: int
    begin_ns: int
    end_ns: int
    ret_code: int
    handle: int
    stack_hash: int

    @property
    def reason(self) -> str:
        """The error, in words."""
        known = CAPTURE_ERRORS.get(self.ret_code)
        return f"error {self.ret_code} ({known})" if known else f"error {self.ret_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One recorded capture, from begin to end, and the instantiation that follows."""

    begin: GraphCall
    end: GraphCall
    instantiation: GraphCall | None

    @property
    def duration_ns(self) -> int:
        """Host time of capture and instantiation: nothing runs on a stream while it is captured."""
        made = self.instantiation
        return self.end.end_ns - self.begin.begin_ns + (made.end_ns - made.begin_ns if made else 0)


def graph_calls(evidence: Evidence, window: Window, process: int) -> list[GraphCall]:
    """Recorded calls that capture, instantiate or update graphs, in order of time."""
    rows = evidence.reader.call_rows(window, sources=(Source.CUDA_GRAPH,), process=process, ops=_GRAPH_MAKING_OPS)
    return [_call(row) for row in rows]


def captures(evidence: Evidence, window: Window, process: int) -> list[Capture]:
    """Captures that began and ended in the window."""
    threads: dict[int, list[GraphCall]] = defaultdict(list)
    for call in graph_calls(evidence, window, process):
        threads[call.tid].append(call)
    captures_found = [capture for calls in threads.values() for capture in _captures_of_thread(calls)]
    return sorted(captures_found, key=lambda capture: capture.begin.begin_ns)


def _captures_of_thread(calls: list[GraphCall]) -> list[Capture]:
    captures_found: list[Capture] = []
    begin: GraphCall | None = None
    for call in calls:
        if "BeginCapture" in call.name and call.ret_code == 0:
            begin = call
        elif "EndCapture" in call.name and begin:
            captures_found.append(Capture(begin=begin, end=call, instantiation=None))
            begin = None
        elif "Instantiate" in call.name and captures_found and captures_found[-1].instantiation is None and not begin:
            captures_found[-1] = Capture(begin=captures_found[-1].begin, end=captures_found[-1].end, instantiation=call)
    return captures_found


def is_failure(call: GraphCall) -> bool:
    """Whether a call made no graph; a failed update is not counted, as a new instantiation follows it."""
    return call.ret_code != 0 and "ExecUpdate" not in call.name


def call_that_broke_capture(evidence: Evidence, process: int, failed: GraphCall) -> GraphCall | None:
    """The recorded call that broke a capture: the first one inside it with a capture error of its own."""
    earlier = Window(begin_ns=max(evidence.window.begin_ns, failed.begin_ns - 10_000_000_000), end_ns=failed.begin_ns)
    begins = [call for call in graph_calls(evidence, earlier, process) if "BeginCapture" in call.name]
    if not begins:
        return None
    inside = Window(begin_ns=begins[-1].begin_ns, end_ns=failed.begin_ns)
    broken = [
        _call(row)
        for row in evidence.events(inside, _CUDA_SOURCES, process)
        if int(row["ret_code"]) in CAPTURE_ERRORS and int(row["ret_code"]) != _INVALIDATED
    ]
    return broken[0] if broken else None


def _call(row: Any) -> GraphCall:
    return GraphCall(
        name=_NAME_BY_OP.get((int(row["source"]), int(row["op"])), ""),
        tid=int(row["tid"]),
        begin_ns=int(row["start_ns"]),
        end_ns=int(row["start_ns"] + row["duration_ns"]),
        ret_code=int(row["ret_code"]),
        handle=int(row["arg1"]),
        stack_hash=int(row["stack_hash"]),
    )


def launch_counts(evidence: Evidence, window: Window, process: int) -> tuple[float, float]:
    """Exact launches of a process in a window: (of graphs, of anything else)."""
    graphs = others = 0.0
    for totals in evidence.ops((window,), process):
        kind = _KIND_BY_OP.get((totals.source, totals.op), Kind.NONE)
        if kind & Kind.GRAPH:
            graphs += totals.count
        elif kind & Kind.LAUNCH:
            others += totals.count
    return graphs, others


def processes_with_graphs(evidence: Evidence) -> list[Process]:
    """Processes with recorded calls that make graphs."""
    rows = evidence.reader.call_rows(evidence.window, sources=(Source.CUDA_GRAPH,), ops=_GRAPH_MAKING_OPS)
    numbers = sorted(set(rows["process"].tolist()) & evidence.processes.keys())
    return [evidence.processes[number] for number in numbers]


def delayed_graphs_link(case: Case, claims: Mapping[Bucket, int]) -> Link | None:
    """That graph launches were delayed by these claims, as a link; None without graphs or delays on the host."""
    graphs = [change for change in case.op_changes if kind_of(change) & Kind.GRAPH and change.count > 0]
    before = sum(ns for bucket, ns in claims.items() if bucket.part in (Part.IDLE, Part.LAUNCH))
    if not graphs or before <= 0:
        return None
    count = sum(change.count for change in graphs)
    return Link(
        text=f"the launches of CUDA graphs, {format_number(count, 2)} per {case.noun}, were delayed by that",
        seen_ns=before,
        expected_ns=0,
        structure=f"{graphs[0].totals.name} is on the critical path",
        order="the GPU had nothing to do until the graph was launched",
    )
