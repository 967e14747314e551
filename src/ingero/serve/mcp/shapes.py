"""The shapes of structured answers; their JSON schemas are made from here. In the compact form empty members are left
out, so none is required."""

from __future__ import annotations

from typing_extensions import TypedDict

Cell = str | int | float | None


class CutAnswer(TypedDict, total=False):
    """rest: what of the answer had no room, list by list, and how to get it."""

    rest: list[str]


class WindowShape(TypedDict, total=False):
    """The time range an answer is about, unix ns."""

    begin_ns: int
    end_ns: int
    duration_ns: int


class CheckRow(TypedDict, total=False):
    """One checked thing. state: ok, warning, missing, not here. fix: the command that mends it."""

    section: str
    name: str
    state: str
    found: str
    fix: str | None


class CheckAnswer(CutAnswer, total=False):
    """Whether this machine can be traced."""

    ready: bool
    rows: list[CheckRow]


class OpShape(TypedDict, total=False):
    """All calls of one operation in one process. wall_ratio: of recorded time. clocks: ns by what callers did."""

    op: str
    pid: int
    node: str
    process_name: str
    count: int
    errors: int | None
    sum_ns: int
    max_ns: int
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    wall_ratio: float
    bytes: int
    clocks: dict[str, int]


class DropShape(TypedDict, total=False):
    """Something that was lost or could not be told."""

    counter: str
    reason: str
    count: int


class StatsAnswer(CutAnswer, total=False):
    """Operations, highest total first. is_exact: counts and sums are of all calls, not of the stored ones."""

    window: WindowShape
    is_exact: bool
    ops: list[OpShape]
    more_ops: int
    system: dict[str, float]
    drops: list[DropShape]
    note: str


class WhereShape(TypedDict, total=False):
    """The line of code and the call on the critical path; `reason` says why it is not known. text: all of it.

    mean_ns: of one such call, or outside of GPU calls of one step (`per`). waiting_thread: whose line it is, where the
    calling thread has no Python frames and this one waits for it. thread: the same of one off the critical path.
    """

    text: str
    file: str | None
    line: int | None
    function: str | None
    waiting_thread: str
    thread: str
    call: str
    state: str
    per: str
    mean_ns: int | None
    baseline_mean_ns: int | None
    longest_ns: int | None
    is_exact: bool
    reason: str


class ActorShape(TypedDict, total=False):
    """A culprit or an affected process."""

    pid: int
    process: int
    name: str
    lost_ns: int
    context_switches: int | None
    rank: int | None
    container: str
    job: str


class LinkShape(TypedDict, total=False):
    """One link of the chain of evidence: what was seen, what the baseline made expected, and why it is a cause."""

    text: str
    seen_ns: int
    expected_ns: int | None
    source: str
    order: str


class FixShape(TypedDict, total=False):
    """What to do. command: for a human to read before running it."""

    text: str
    command: str


class LostShape(TypedDict, total=False):
    """Lost time by part of the step and state of the critical-path thread."""

    part: str
    state: str
    text: str
    lost_ns: int
    share_ratio: float


class ContributingShape(TypedDict, total=False):
    """Another cause of the same lost time, from 10% of it."""

    cause: str
    lost_ns: int
    share_ratio: float
    headline: str


class IncidentShape(TypedDict, total=False):
    """One stall, the same parts as `ingero explain` prints. end_ns null: ongoing.

    impact: lost time, its share of wall time, and what the worst affected process noticed against its baseline;
    explained_ratio: how much of the lost time has a proven cause. details: the numbers behind the evidence. node: of a
    merged recording.
    """

    number: int
    node: str
    cause: str
    kind: str
    severity: str
    resource: str
    root: str
    start_ns: int
    end_ns: int | None
    headline: str
    impact: dict[str, Cell]
    where: WhereShape
    fix: list[FixShape]
    breakdown: list[LostShape]
    affected: list[ActorShape]
    culprits: list[ActorShape]
    contributing: list[ContributingShape]
    evidence: list[LinkShape]
    timeline: list[dict[str, Cell]]
    details: dict[str, Cell]


class VerdictShape(TypedDict, total=False):
    """The verdict on a process as a whole."""

    pid: int
    name: str
    text: str
    has_incident: bool
    rank: int | None
    job: str
    node: str


class NotEvaluatedShape(TypedDict, total=False):
    """A cause that this recording cannot show: its absence proves nothing."""

    cause: str
    reason: str


class StoredChainShape(TypedDict, total=False):
    """A chain as an older Ingero stored it: a correlation, not an account."""

    id: str
    detected_ns: int
    severity: str
    summary: str
    root_cause: str
    explanation: str
    op: str


class FindingsAnswer(CutAnswer, total=False):
    """Everything beside the incidents."""

    window: WindowShape
    verdicts: list[VerdictShape]
    not_checked: list[NotEvaluatedShape]
    not_traced: dict[str, str]
    stored_chains: list[StoredChainShape]
    note: str


class ChainsAnswer(FindingsAnswer, total=False):
    """Incidents, worst first. more: how many top_n left out."""

    incidents: list[IncidentShape]
    more: int


class ExplainAnswer(FindingsAnswer, total=False):
    """One incident from end to end; null where there is none. others: number and cause of the rest."""

    incident: IncidentShape | None
    others: dict[str, str]


class StackShape(TypedDict, total=False):
    """Recorded calls of one operation with one stack. line: the innermost line of the user's own code.

    waiting_*: of calls from a thread without Python frames, the thread that provably waits for them (PID/TID), and its
    line and frames.
    """

    op: str
    pid: int
    node: str
    count: int
    sum_ns: int
    avg_ns: int
    line: str
    python: list[str]
    native: list[str]
    note: str
    waiting_thread: str
    waiting_line: str
    waiting_python: list[str]


class StacksAnswer(CutAnswer, total=False):
    """Stacks, highest total first."""

    window: WindowShape
    stacks: list[StackShape]
    more: int
    note: str


class SqlAnswer(TypedDict, total=False):
    """The answer to a statement, columns once, then rows."""

    columns: list[str]
    rows: list[list[Cell]]
    row_count: int
    is_truncated: bool
    elapsed_ns: int
    notes: list[str]


class GraphShape(TypedDict, total=False):
    """One CUDA graph (executable) of one process, by what is stored of it."""

    pid: int
    handle: str
    stored_launches: int
    first_ns: int
    last_ns: int


class GraphCallShape(TypedDict, total=False):
    """A capture, an instantiation or an update."""

    time_ns: int
    pid: int
    tid: int
    op: str
    handle: str
    duration_ns: int
    ret_code: int


class GraphLifecycleAnswer(CutAnswer, total=False):
    """totals: exact count per operation. calls: what made and changed graphs, oldest first."""

    window: WindowShape
    totals: dict[str, int]
    calls: list[GraphCallShape]
    graphs: list[GraphShape]
    note: str


class GraphRateShape(TypedDict, total=False):
    """Launches of graphs by one process in one time range, exact."""

    pid: int
    start_ns: int
    launches: int
    per_s: float


class GraphFrequencyAnswer(CutAnswer, total=False):
    """Launch rates per process and time range, and the graphs as far as they are stored. more: time ranges left out."""

    window: WindowShape
    window_seconds: int
    rates: list[GraphRateShape]
    more: int
    graphs: list[GraphShape]
    note: str


class DemoAnswer(CutAnswer, total=False):
    """A simulated scenario, recorded and diagnosed; nothing in it is of this host. scenarios: what can be asked for."""

    scenario: str
    title: str
    scenarios: dict[str, str]
    expected_cause: str
    incident: IncidentShape | None


class TestReportAnswer(CutAnswer, total=False):
    """The counts of a JUnit file. available false: there is none; hint says how to make one."""

    available: bool
    tests: int
    failures: int
    errors: int
    skipped: int
    time_s: float
    failed: list[str]
    hint: str


class MissingNodes(TypedDict, total=False):
    """Nodes that did not answer for one reason: how many, and some of them."""

    reason: str
    count: int
    nodes: list[str]


class NodeState(TypedDict, total=False):
    """One node. reason: why it does not answer."""

    node: str
    address: str
    answers: bool
    is_live: bool
    clock_offset_ns: int | None
    clock_bound_ns: int | None
    reason: str


class FleetChain(TypedDict, total=False):
    """One stall on one node."""

    node: str
    severity: str
    root_cause: str
    summary: str
    lost_ns: int
    fix: str


class QuietNodes(TypedDict, total=False):
    """Nodes without a chain, and what they say instead: nothing found, or nothing that could be judged."""

    said: str
    count: int
    nodes: list[str]


class FleetOp(TypedDict, total=False):
    """All calls of one operation in one process of one node."""

    node: str
    op: str
    pid: int
    count: int
    sum_ns: int
    max_ns: int
    p99_ns: float | None


class NodeOverview(TypedDict, total=False):
    """What one node has."""

    node: str
    chains: int
    calls: int
    events: int
    sessions: int
    is_live: bool


class FleetAnswer(CutAnswer, total=False):
    """What the nodes said. partial: some did not answer; they are under missing. more: what found no room here.

    warnings: of clocks of nodes that are off, by which times of nodes cannot be compared as they stand.
    """

    warnings: list[str]
    action: str
    nodes_asked: int
    nodes_answered: int
    partial: bool
    missing: list[MissingNodes]
    notes: list[str]
    nodes: list[NodeState]
    chains: list[FleetChain]
    without_chains: list[QuietNodes]
    columns: list[str]
    rows: list[list[Cell]]
    is_truncated: bool
    ops: list[FleetOp]
    overview: list[NodeOverview]
    more: int
    note: str
