"""The tools: each asks the recording one question and answers with structured content and a short text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from mcp_types import CallToolResult, TextContent
from pydantic import Field

from ingero.serve.mcp import calls, graphs, incidents, shapes
from ingero.serve.mcp.compact import compact
from ingero.serve.mcp.fitting import fitted
from ingero.serve.mcp.junit import read_report, report_text
from ingero.serve.mcp.rows import sql_text
from ingero.serve.mcp.untrusted import RULE, traced
from ingero.serve.recording_source import RecordingSource, parse_since_ns

if TYPE_CHECKING:
    from ingero.discover.checks import CheckRow
    from ingero.store.waiters import PlacedTime

Since = Annotated[
    str,
    Field(
        description='Only the end of the recording: "90s", "5m", "1h30m", "last 5 minutes". '
        'Empty or "all": the entire recording.'
    ),
]
Pid = Annotated[int | None, Field(description="Only this process id.", ge=1)]
Skip = Annotated[int, Field(description="Skip this many: those of the previous answers.", ge=0)]
Compact = Annotated[bool, Field(description="Leave out members without a value.")]
SourceName: TypeAlias = Literal["cuda", "driver", "graph", "nccl"]
_SOURCES = dict(zip(("cuda", "driver", "graph", "nccl"), calls.CALL_SOURCES, strict=True))
_NO_NODES = (
    "No nodes are configured: this server answers for one recording. `ingero mcp --nodes gpu-01,gpu-02 ...` lets it "
    "ask their dashboards, or fleet: nodes: in ingero.yaml."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """Scenarios that can be recorded without a GPU. record: writes the named one to a file and says the cause in it."""

    titles: Callable[[], Mapping[str, str]]
    record: Callable[[str, Path], str]


class Fleet(Protocol):
    """Many nodes. Each answer is its members and its text, bounded, with every text of a node marked."""

    def ask(self, action: str, *, since: str, pid: int | None, query: str, limit: int) -> tuple[dict[str, Any], str]:
        """What all nodes say: chains, sql, ops or overview."""

    def states(self) -> tuple[dict[str, Any], str]:
        """Which nodes there are, and which answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the tools need besides the recording. test_report: a JUnit file; fleet: nodes to ask; None: none is."""

    check: Callable[[], Sequence[CheckRow]]
    demo: Demo
    clock: Callable[[], int]
    test_report: Path | None = None
    fleet: Fleet | None = None


class Tools:
    """One method per tool; its docstring is what an assistant reads."""

    def __init__(self, source: RecordingSource, around: Surroundings) -> None:
        self._source = source
        self._around = around

    def all(self) -> tuple[Callable[..., CallToolResult], ...]:
        """The tools, the one to begin with first."""
        return (
            self.explain_incident,
            self.get_causal_chains,
            self.get_trace_stats,
            self.get_stacks,
            self.graph_lifecycle,
            self.graph_frequency,
            self.run_sql,
            self.get_check,
            self.run_demo,
            self.get_test_report,
            self.query_fleet,
            self.fleet_nodes,
        )

    def explain_incident(
        self,
        number: Annotated[int | None, Field(description="Number of the incident; none: the worst.", ge=1)] = None,
        since: Since = "",
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.ExplainAnswer]:
        """Explain one stall end to end: headline, impact, line of code, fix, breakdown, culprits, evidence. Ask this
        first. Numbers come from get_causal_chains with the same `since`."""
        diagnosis = self._source.diagnosis(since)
        self._begin_stacks(since)
        found = next((incident for incident in diagnosis.incidents if number in (None, incident.number)), None)
        stored = self._stored_chains(since) if found is None else []
        answer = incidents.diagnosis_json(diagnosis) | {
            "incident": incidents.incident_json(found) if found else None,
            "others": {
                str(incident.number): incident.cause for incident in diagnosis.incidents if incident is not found
            },
            "stored_chains": stored,
            "note": RULE,
        }
        if found is not None:
            text = "\n".join(incidents.incident_text(found))
        elif number is not None:
            text = f"There is no incident {number}; there are: {', '.join(answer['others']) or 'none'}."
        else:
            text = "\n".join([*incidents.no_incident_text(diagnosis), *_stored_lines(stored)])
        return _reply(answer, text, tsc)

    def get_causal_chains(
        self,
        since: Since = "",
        pid: Pid = None,
        pids: Annotated[list[int] | None, Field(description="Only these process ids.")] = None,
        top_n: Annotated[int, Field(description="The maximum number of incidents.", ge=1, le=100)] = 10,
        skip: Skip = 0,
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.ChainsAnswer]:
        """All stalls that were found, worst first, with their chains of evidence, and the causes that could not be
        checked. Files of older versions also have `stored_chains`: correlations, not measured causes."""
        diagnosis = self._source.diagnosis(since)
        self._begin_stacks(since)
        wanted = [*(pids or ()), *(() if pid is None else (pid,))]
        every = [incident for incident in diagnosis.incidents if not wanted or incidents.concerns(incident, wanted)]
        found = every[skip:]
        stored = self._stored_chains(since)[:top_n]
        answer = incidents.diagnosis_json(diagnosis) | {
            "incidents": [incidents.incident_json(one) for one in found[:top_n]],
            "more": len(found[top_n:]),
            "stored_chains": stored,
            "note": RULE,
        }
        lines = [incidents.incident_line(one) for one in found[:top_n]]
        if every and not found:
            lines = [f"There are {len(every)} incidents, and skip={skip} leaves out all of them."]
        elif diagnosis.incidents and not found:
            lines = [f"No incident concerns these processes; {len(diagnosis.incidents)} concern others."]
        if len(found) > top_n:
            lines.append(f"and {len(found) - top_n} more: ask again with skip={skip + top_n}")
        text = "\n".join([*(lines or incidents.no_incident_text(diagnosis)), *_stored_lines(stored)])
        return _reply(answer, text, tsc, skipped=skip)

    def get_trace_stats(
        self, since: Since = "", pid: Pid = None, skip: Skip = 0, tsc: Compact = True
    ) -> Annotated[CallToolResult, shapes.StatsAnswer]:
        """What the calls cost, per operation and process: exact counts and sums, quantiles, thread-state time of the
        caller, the host's averages, and what tracing dropped."""
        with self._source.open(since) as (reader, window):
            stats = calls.trace_stats(reader, window, pid, skip)
        text = calls.stats_text(stats, skip)
        return _reply(stats | {"window": incidents.window_json(window)}, text, tsc, skipped=skip)

    def get_stacks(
        self,
        source: Annotated[SourceName | None, Field(description="Only calls of this library.")] = None,
        op: Annotated[str, Field(description="Only this operation, e.g. cudaStreamSynchronize.")] = "",
        pid: Pid = None,
        since: Since = "",
        limit: Annotated[int, Field(description="At most so many stacks.", ge=1, le=100)] = 10,
        skip: Skip = 0,
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.StacksAnswer]:
        """Which lines of Python and native functions the recorded calls came from, highest total first. Of the stored
        calls: the rare, the slow and a sample of the rest."""
        from ingero.store.user_sql.event_filter import op_pair  # noqa: PLC0415  # the handshake does not wait for it

        pair = op_pair(op) if op else None
        all_times, notes = self._source.kept(("stacks", since), lambda: self._stack_times(since))
        with self._source.open(since) as (reader, window):
            processes = (
                None if pid is None else {process.process for process in reader.processes() if process.pid == pid}
            )
            times = calls.chosen(
                all_times, processes=processes, source=None if source is None else _SOURCES[source], op=pair
            )[skip:]
            rows = calls.stack_rows(reader, times[:limit])
        more = len(times[limit:])
        answer = {"window": incidents.window_json(window), "stacks": rows, "more": more}
        text = calls.stacks_text(rows) + (f"\nand {more} more: ask again with skip={skip + limit}" if more else "")
        return _reply(answer | {"note": " ".join([*notes, RULE])}, text, tsc, skipped=skip)

    def graph_lifecycle(
        self, pid: Pid = None, since: Since = "", tsc: Compact = True
    ) -> Annotated[CallToolResult, shapes.GraphLifecycleAnswer]:
        """How CUDA graphs were captured, instantiated, updated and launched."""
        with self._source.open(since) as (reader, window):
            counts = graphs.totals(self._source.path, window, pid)
            note = graphs.note(has_any=bool(counts), is_exact=reader.has_exact_totals)
            made = graphs.lifecycle(self._source.path, window, pid)
            known = graphs.graphs(self._source.path, window, pid)
        answer = {"window": incidents.window_json(window), "totals": counts, "calls": made, "graphs": known}
        text = "\n".join([*graphs.lifecycle_lines(counts, made, known), note])
        return _reply(answer | {"note": note}, text, tsc)

    def graph_frequency(
        self,
        pid: Pid = None,
        window_seconds: Annotated[int, Field(description="Length of a time range.", ge=1, le=3600)] = 10,
        since: Since = "",
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.GraphFrequencyAnswer]:
        """How often each process launches CUDA graphs over time, and which graphs."""
        with self._source.open(since) as (reader, window):
            shown, more = graphs.rates(self._source.path, window, pid, window_seconds)
            note = graphs.note(has_any=bool(shown), is_exact=reader.has_exact_totals)
            known = graphs.graphs(self._source.path, window, pid)
        answer = {"window": incidents.window_json(window), "window_seconds": window_seconds, "rates": shown}
        rest = [f"and {more} time ranges more: ask with longer window_seconds, or with pid"] if more else []
        text = "\n".join([*graphs.rate_lines(shown, known), *rest, note])
        return _reply(answer | {"more": more, "graphs": known, "note": note}, text, tsc)

    def run_sql(
        self,
        query: Annotated[str, Field(description="One SELECT over the published views (resource ingero://schema).")],
        limit: Annotated[int, Field(description="At most so many rows.", ge=1, le=10_000)] = 100,
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.SqlAnswer]:
        """Ask the recording in SQL (SQLite). It only reads. Columns named *_ns and `duration` are nanoseconds. Exact
        sums are in op_stats; events holds a selection of the calls. Notes say what to know of the numbers."""
        answer = self._source.fitting_sql(query, limit)
        return _reply(answer, sql_text(answer), tsc, is_table=True)

    def get_check(self) -> Annotated[CallToolResult, shapes.CheckAnswer]:
        """Whether this host can be traced, what is missing, and the command that fixes it."""
        from ingero.discover.checks import CheckState, is_ready  # noqa: PLC0415  # the handshake does not wait for it

        rows = self._around.check()
        answer = {
            "ready": is_ready(rows),
            "rows": [
                {
                    "section": row.section,
                    "name": traced(row.name),
                    "state": row.state.value,
                    "found": traced(row.found),
                    "fix": traced(row.fix),
                }
                for row in rows
            ],
        }
        bad = [row for row in rows if row.state in (CheckState.MISSING, CheckState.WARNING)]
        lines = [
            f"{row.state.value}: {traced(row.name)}: {traced(row.found)}"
            + (f"; fix: {traced(row.fix)}" if row.fix else "")
            for row in bad
        ]
        return _reply(answer, "\n".join(["ready" if answer["ready"] else "not ready", *lines]), is_compact=True)

    def run_demo(
        self,
        scenario: Annotated[str, Field(description="Name of a scenario; empty: list them.")] = "",
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.DemoAnswer]:
        """Record a made-up stall without a GPU and explain it, to see what an answer looks like. The recording that
        this server reads is not touched."""
        titles = dict(self._around.demo.titles())
        if scenario not in titles:
            unknown = f"There is no scenario {traced(scenario)}. " if scenario else ""
            text = unknown + "Scenarios: " + "; ".join(f"{name}: {title}" for name, title in titles.items())
            return _reply({"scenarios": titles, "incident": None}, text, tsc)
        with tempfile.TemporaryDirectory(prefix="ingero-demo-") as folder:
            path = Path(folder) / "demo.db"
            expected = self._around.demo.record(scenario, path)
            with closing(RecordingSource(path, clock=self._around.clock)) as made:
                diagnosis = made.diagnosis()
        worst = diagnosis.incidents[0] if diagnosis.incidents else None
        answer = {
            "scenario": scenario,
            "title": titles[scenario],
            "expected_cause": expected,
            "incident": incidents.incident_json(worst) if worst else None,
        }
        text = "\n".join(incidents.incident_text(worst) if worst else incidents.no_incident_text(diagnosis))
        made_up = f"A simulated recording, not this host: {titles[scenario]}. The cause is {expected}; what was found:"
        return _reply(answer, f"{made_up}\n{text}", tsc)

    def get_test_report(self, tsc: Compact = True) -> Annotated[CallToolResult, shapes.TestReportAnswer]:
        """The outcome of the test run whose JUnit file this server was started with (--test-report)."""
        answer = read_report(self._around.test_report)
        return _reply(answer, report_text(answer), tsc)

    def query_fleet(
        self,
        action: Annotated[Literal["chains", "sql", "ops", "overview"], Field(description="What to ask the nodes.")],
        since: Since = "",
        pid: Pid = None,
        query: Annotated[str, Field(description="The statement, for the action sql.")] = "",
        sql: Annotated[str, Field(description="An alias of query.")] = "",
        limit: Annotated[int, Field(description="At most so many rows.", ge=1, le=10_000)] = 100,
        tsc: Compact = True,
    ) -> Annotated[CallToolResult, shapes.FleetAnswer]:
        """Ask many nodes at once: the causal chains of all, worst first; one statement (sql); calls that cost most
        (ops); or what each has (overview). Nodes that did not answer are under `missing`: of them nothing is known.
        Clocks that are off are under `warnings`: times of those nodes cannot be compared with others as they stand."""
        if self._around.fleet is None:
            return _reply({"nodes": [], "note": _NO_NODES}, _NO_NODES, tsc)
        answer, text = self._around.fleet.ask(
            action, since=parse_since(since), pid=pid, query=query or sql, limit=limit
        )
        return _reply(answer, text, tsc, is_table=action == "sql")

    def fleet_nodes(self, tsc: Compact = True) -> Annotated[CallToolResult, shapes.FleetAnswer]:
        """Which nodes can be asked, and which of them do not answer, with the reason; those first."""
        if self._around.fleet is None:
            return _reply({"nodes": [], "note": _NO_NODES}, _NO_NODES, tsc)
        return _reply(*self._around.fleet.states(), tsc)

    def _begin_stacks(self, since: str) -> None:
        """Who has read an incident asks for stacks next; of millions of calls they take seconds."""
        self._source.begin(("stacks", since), lambda: self._stack_times(since))

    def _stack_times(self, since: str) -> tuple[list[PlacedTime], list[str]]:
        with self._source.open(since) as (reader, window):
            return calls.stack_times(reader, window)

    def _stored_chains(self, since: str) -> list[dict[str, Any]]:
        with self._source.open(since) as (reader, window):
            return [incidents.stored_chain_json(chain) for chain in reader.causal_chains(window, without_incident=True)]


def parse_since(since: str) -> str:
    """The duration, once it is one.

    Raises:
        QuantityError: it is none.
    """
    parse_since_ns(since)
    return since


def _reply(
    answer: Mapping[str, Any], text: str, is_compact: bool, *, is_table: bool = False, skipped: int | None = None
) -> CallToolResult:
    """is_table: NULL in a row stands for itself. skipped: how many the answer leaves out at its begin, if it can."""
    content = compact(answer) if is_compact and not is_table else dict(answer)
    if not is_table:
        content, text = fitted(content, text, skipped=skipped)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=content)


def _stored_lines(chains: Sequence[Mapping[str, Any]]) -> list[str]:
    by = "found by an older version (a correlation, not a measured cause)"
    return [f"{by}: {chain['severity']} {chain['summary']}" for chain in chains]
