"""The addresses of the page's details: facts without a verdict, NCCL, memory, stacks, containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query
from fastapi import Path as PathParameter
from starlette.responses import Response

from ingero.serve.dashboard import answers
from ingero.serve.dashboard.containers import Containers, containers
from ingero.serve.dashboard.incident_stacks import IncidentStacks, incident_stacks, selection_of
from ingero.serve.dashboard.memory import Memory, memory
from ingero.serve.dashboard.nccl import Nccl, nccl
from ingero.serve.dashboard.selection import ALL, Selection, TimeRange
from ingero.serve.dashboard.stacks import Calls, Stack, Tree, calls, hash_of, stack, tree
from ingero.serve.dashboard.state import State
from ingero.serve.recording_source import RecordingSource
from ingero.serve.structured.json_text import for_pages
from ingero.store.reader import Reader
from ingero.store.records import Window

_MAX_NUMBER = 2**31 - 1
_MAX_NS = 2**63 - 1

Since = Annotated[
    str, Query(max_length=32, pattern=r"^[0-9a-z. ]*$", description='the last "90s", "5m", "1h30m"; empty: all')
]
Process = Annotated[int, Query(ge=0, le=_MAX_NUMBER, description="number of a process (/api/v1/processes)")]
Make = Callable[[Reader, Window, Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(State):
    """The overview without its verdict. lost: what tracing lost, in all; /api/v1/dropped data says what.

    overhead: what tracing itself took of one core, and of memory.
    """

    database: str
    sessions: list[dict[str, Any]]
    processes: list[dict[str, Any]]
    calls: int
    recorded_calls: int
    top_op: dict[str, Any] | None
    has_exact_totals: bool
    system: dict[str, float | None] | None
    overhead: dict[str, float | None]
    lost: int


def add_details(app: FastAPI, source: RecordingSource) -> None:
    """Add the addresses of the details. Answers are cached like all others; none waits for a diagnosis."""
    _whole(app, source)
    _calls(app, source)


def _whole(app: FastAPI, source: RecordingSource) -> None:
    @app.get("/api/v1/facts", responses={200: {"model": Facts}})
    def facts_of(time: Time) -> Response:
        """What was recorded where, and how complete it is: the overview without the verdict, which takes longer."""

        def make(reader: Reader, window: Window, state: Mapping[str, Any]) -> Facts:
            return Facts(**state, database=reader.path.name, **answers.facts(reader, window))

        return _answer(source, "facts", time, (), make)

    @app.get("/api/v1/nccl", responses={200: {"model": Nccl}})
    def nccl_of(time: Time) -> Response:
        """NCCL: exact totals per operation; recorded calls per communicator, and how late each rank entered them."""
        return _answer(source, "nccl", time, (), nccl)

    @app.get("/api/v1/memory", responses={200: {"model": Memory}})
    def memory_of(
        time: Time, points: Annotated[int, Query(ge=2, le=2000, description="points of time")] = 200
    ) -> Response:
        """GPU memory: what lines and containers held over time, what failed, how full the GPUs were."""
        return _answer(source, "memory", time, (points,), lambda r, w, s: memory(r, w, s, points))

    @app.get("/api/v1/containers", responses={200: {"model": Containers}})
    def containers_of(time: Time) -> Response:
        """Per container: its processes, their calls and clocks, and whose CPU it took."""
        return _answer(source, "containers", time, (), containers)


def _calls(app: FastAPI, source: RecordingSource) -> None:
    @app.get("/api/v1/calls", responses={200: {"model": Calls}})
    def calls_of(
        only: Selected,
        since: Since = "",
        process: Annotated[int | None, Query(ge=0, le=_MAX_NUMBER)] = None,
        limit: Annotated[int, Query(ge=1, le=500, description="at most so many")] = 50,
    ) -> Response:
        """The longest recorded calls, each with its account and the hash of its stack."""

        def make(reader: Reader, window: Window, state: Mapping[str, Any]) -> Calls:
            return calls(reader, window, state, process, limit, only)

        return _answer(source, "calls", only.of(since), (process, limit), make, only)

    @app.get("/api/v1/stacks/{stack_hash}", responses={200: {"model": Stack}})
    def stack_of(stack_hash: Annotated[str, PathParameter(pattern=r"^[0-9a-f]{16}$")]) -> Response:
        """One stack, native and Python, innermost first."""

        def text() -> bytes:
            with source.open() as (reader, _):
                return for_pages(stack(reader, hash_of(stack_hash)))

        return Response(source.kept(("stack", stack_hash), text), media_type="application/json")

    @app.get("/api/v1/tree", responses={200: {"model": Tree}})
    def tree_of(
        only: Selected, process: Process, since: Since = "", of: Literal["calls", "samples"] = "calls"
    ) -> Response:
        """What one process spent its time at, as a tree of functions and lines: in recorded calls, or outside calls."""
        return _answer(
            source, "tree", only.of(since), (process, of), lambda r, w, s: tree(r, w, s, process, of, only), only
        )

    @app.get("/api/v1/incidents/{number}/stacks", responses={200: {"model": IncidentStacks}})
    def incident_stacks_of(number: Annotated[int, PathParameter(ge=0, le=_MAX_NUMBER)], since: Since = "") -> Response:
        """Where in the code an incident's worst affected process spent its time then: its longest stacks, whole."""
        found = answers.incident_of(source.diagnosis(since), number)

        def make(reader: Reader, window: Window, state: Mapping[str, Any]) -> IncidentStacks:
            return incident_stacks(reader, window, state, found)

        only = selection_of(found)
        return _answer(source, "incident-stacks", only.of(since), (number, found.root), make, only)


def _time(
    since: Since = "",
    begin_ns: Annotated[int | None, Query(ge=0, le=_MAX_NS, description="unix ns: only from then on")] = None,
    end_ns: Annotated[int | None, Query(ge=0, le=_MAX_NS, description="unix ns: only before it")] = None,
) -> TimeRange:
    return TimeRange(since=since, begin_ns=begin_ns, end_ns=end_ns)


def _selection(
    begin_ns: Annotated[
        int | None, Query(ge=0, le=_MAX_NS, description="unix ns: only what began from then on")
    ] = None,
    end_ns: Annotated[int | None, Query(ge=0, le=_MAX_NS, description="unix ns: only what began before it")] = None,
    op: Annotated[str, Query(max_length=100, description="only this operation (/api/v1/ops)")] = "",
    line: Annotated[
        str, Query(max_length=5000, description='only stacks through it: "/a/train.py:31 in forward"')
    ] = "",
) -> Selection:
    return Selection(begin_ns=begin_ns, end_ns=end_ns, op=op, line=line)


Selected = Annotated[Selection, Depends(_selection)]
Time = Annotated[TimeRange, Depends(_time)]


def _answer(
    source: RecordingSource,
    name: str,
    time: TimeRange,
    parameters: tuple[object, ...],
    make: Make,
    only: Selection = ALL,
) -> Response:
    def text() -> bytes:
        with source.open(time.since) as (reader, whole):
            window = time.within(whole)
            return for_pages(make(reader, window, answers.state(reader, window, source.clock())))

    return Response(source.kept((name, time, *parameters, only), text), media_type="application/json")
