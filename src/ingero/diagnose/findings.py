"""The records of a diagnosis: findings of rules, incidents, verdicts per process, and causes that were not evaluated.

Times are unix ns. `lost_ns` is always end to end: what the process's main stream took beyond its reference.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from ingero.identity import waiting_mark
from ingero.step_counts import How
from ingero.store.records import Window
from ingero.units import format_ns, format_time_of_day

if TYPE_CHECKING:
    from ingero.diagnose.profile.report import Profiles
    from ingero.diagnose.steps.gpu_idle import GpuIdle

Fact: TypeAlias = "int | float | str | bool | None"
Identity: TypeAlias = "tuple[str, str, str, bool]"  # cause, resource, root, whether it is counted against zero

UNEXPLAINED = "unexplained"  # stands where a cause would, if there is none
HIGH_RATIO = 0.20  # lost share of wall time from which a finding is of high severity
MEDIUM_RATIO = 0.05  # and from which of medium severity
_MIN_LONGEST_RATIO = 2  # of the longest call to the mean, before the longest is shown beside it
_PACKAGE_FILES = ("__init__.py", "__main__.py")  # file names that mean nothing without the package's name


class Severity(enum.IntEnum):
    """The severity of a finding or an incident."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


class FindingKind(enum.Enum):
    """What a finding claims.

    INCIDENT: time was lost against a better reference that was seen. BOTTLENECK: slow for as long as the process was
    seen; its lost time is a share of wall time, compared with zero. EVENT: something that matters without any lost
    time (a kill, a hang, a leak).
    """

    INCIDENT = "incident"
    BOTTLENECK = "bottleneck"
    EVENT = "event"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A place in the workload's own code; line 0: only the function is known.

    waiting_thread: PID/TID of the thread at this line, where that thread waits for the calling thread.
    """

    file: str
    line: int
    function: str
    waiting_thread: str = ""

    def __str__(self) -> str:
        return self._text(self.file)

    @property
    def short(self) -> str:
        """The line with its file's name only, preceded by the package's name for `__init__.py` and `__main__.py`."""
        path = PurePath(self.file)
        return self._text(f"{path.parent.name}/{path.name}" if path.name in _PACKAGE_FILES else path.name)

    def _text(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        mark = f" {waiting_mark(self.waiting_thread)}" if self.waiting_thread else ""
        return (f"{self.function}() at {place}" if self.function else place) + mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The line of Python and the call on the critical path of the affected process, or why the line is not known.

    call: the traced call at that line; "" outside GPU calls. mean_ns, baseline_ns: mean duration of such a call, or
    outside calls the time per `per` (step, sync interval); None: not known, or no baseline. longest_ns: the longest of
    the recorded calls. is_exact: the means are of every call, not of recorded calls or samples only. state: what the
    thread did outside calls. who: the thread at the line, where it is not on the critical path itself. why_not: a
    clause that says why `line` is None.
    """

    line: CodeLine | None = None
    call: str = ""
    mean_ns: int | None = None
    baseline_ns: int | None = None
    longest_ns: int | None = None
    is_exact: bool = False
    state: str = ""
    per: str = ""
    who: str = ""
    why_not: str = ""

    @property
    def text(self) -> str:
        """One line: "forward() at train.py:142: cudaStreamSynchronize 47.5 ms (baseline 3.40 ms)"."""
        if self.line is None:
            return f"line not known: {self.why_not}" if self.why_not else "line not known"
        what = self.call or (f"outside GPU calls, {self.state}" if self.state else "")
        who = f" in thread {self.who}" if self.who else ""
        return self.line.short + who + (f": {what}{self._times()}" if what else "")

    def _times(self) -> str:
        if self.mean_ns is None:
            return ""
        about = "" if self.is_exact else "about "
        each = f" per {self.per}" if self.per else ""
        more = [] if self.baseline_ns is None else [f"baseline {format_ns(self.baseline_ns)}"]
        if self.longest_ns is not None and self.longest_ns > _MIN_LONGEST_RATIO * self.mean_ns:
            more.append(f"longest {format_ns(self.longest_ns)}")
        return f" {about}{format_ns(self.mean_ns)}{each}" + (f" ({', '.join(more)})" if more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributing:
    """Another cause of an incident's lost time, with the part that it explains."""

    cause: str
    lost_ns: int
    share_ratio: float
    headline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A process that took the affected process's time.

    lost_ns: how long it occupied the resource while the affected process waited. container: short name, "" on the host.
    job: the batch scheduler's job, as texts name it.
    """

    pid: int
    name: str
    lost_ns: int = 0
    switches: int | None = None
    container: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """A process that lost time."""

    process: int
    pid: int
    name: str
    lost_ns: int = 0
    rank: int | None = None
    container: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of the chain from the stall to its root cause, with the three checks that it passed.

    text: what happened, as a sentence. seen_ns: its time in the window. expected_ns: its time by the reference, None
    without one. structure: the waits-for edge that was seen. order: why the cause came first.
    """

    text: str
    seen_ns: int = 0
    expected_ns: int | None = None
    structure: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A recommended action: a sentence, and where one exists a command with real pids, CPUs and names."""

    text: str
    command: str = ""


class Part(enum.Enum):
    """The part of a sync interval in which time was lost."""

    IDLE = "idle"  # nothing was queued
    LAUNCH = "launch"  # the host's part of GPU busy: launches came too slowly for the GPU
    GPU = "gpu"  # the rest of GPU busy
    RETURN_DELAY = "return_delay"  # the GPU was done, the sync had not returned


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of the sync intervals and a state of the critical-path thread: of STATES, "gpu_execution" or "unknown"."""

    part: Part
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says about one case.

    claims: the lost time that it explains, by bucket. resource, root: with `cause` the identity of the incident.
    summary: one sentence that a person can forward. evidence: the numbers behind the summary.
    stands_alone: whether it is a cause by itself; otherwise it counts only as a part of a cause that it is joined to.
    min_wall_ratio: a smaller share of wall time counts as explained, but is not reported. is_outside_loop: whether its
    time is known to hold none of the loop's own work.
    """

    cause: str
    summary: str
    claims: Mapping[Bucket, int] = field(default_factory=dict)
    resource: str = ""
    root: str = ""
    kind: FindingKind | None = None  # None: the case's kind
    severity: Severity | None = None  # None: by the lost share of wall time
    window: Window | None = None  # None: the case's window
    culprits: Sequence[Culprit] = ()
    line: CodeLine | None = None
    chain: Sequence[Link] = ()
    fixes: Sequence[Fix] = ()
    evidence: Mapping[str, Fact] = field(default_factory=dict)
    process: int = 0  # number of the process it is about, for a finding without a case; 0: no process in particular
    affected: Affected | None = None  # the process that lost the time, for a finding without a case
    wall_ns: int = 0  # wall time that the lost time is a share of, for a finding without a case
    stands_alone: bool = True
    min_wall_ratio: float = 0.0
    is_outside_loop: bool = False
    absorbed_processes: Sequence[int] = ()  # numbers of processes: their findings of the same time explain this one
    waited_for_pids: Sequence[int] = ()  # pids of the workers that were late

    @property
    def lost_ns(self) -> int:
        """The lost time that the finding explains, ns."""
        return sum(self.claims.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """The impact on the worst affected process, beside its baseline (None without one).

    judged_by: `step` or `sync interval`, which rates and quantiles are of. involuntary_off_cpu_ratio: share of time in
    which the critical-path thread was runnable or throttled; voluntary sleep does not count. context_switches,
    involuntary_context_switches: of all threads of the process.
    """

    judged_by: str
    per_s: float
    baseline_per_s: float | None
    p50_ns: int
    baseline_p50_ns: int | None
    p99_ns: int
    baseline_p99_ns: int | None
    involuntary_off_cpu_ratio: float
    baseline_involuntary_off_cpu_ratio: float | None
    context_switches: int | None = None
    involuntary_context_switches: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A piece of the timeline from before an incident to after it, with the lost share of its wall time."""

    begin_ns: int
    end_ns: int
    lost_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One cause on one resource with one root, with all processes affected by it.

    end_ns: None while it is ongoing. lost_ns: of the affected process that lost most (streams are never summed).
    lost_ratio: share of the incident's wall time. explained_ratio: share of the affected process's lost time that all
    causes together explain. breakdown: lost ns by "part.state". peak_ratio: lost share of the worst second. node: the
    node of the incident and of all its processes; "" in a recording of one node.
    """

    number: int
    cause: str
    resource: str
    root: str
    kind: FindingKind
    severity: Severity
    start_ns: int
    end_ns: int | None
    lost_ns: int
    lost_ratio: float
    explained_ratio: float
    peak_ratio: float
    summary: str
    affected: tuple[Affected, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    line: CodeLine | None = None
    where: Where = field(default_factory=Where)
    contributing: tuple[Contributing, ...] = ()
    chain: tuple[Link, ...] = ()
    fixes: tuple[Fix, ...] = ()
    breakdown: Mapping[str, int] = field(default_factory=dict)
    evidence: Mapping[str, Fact] = field(default_factory=dict)
    impact: Impact | None = None
    timeline: tuple[Moment, ...] = ()
    node: str = ""

    @property
    def of_wall_time(self) -> str:
        """What its shares are of, as texts say it."""
        return share_of_wall_time(self.evidence.get(JUDGED_NS))

    @property
    def identity(self) -> Identity:
        """The key that stays equal while the incident grows; a bottleneck never equals an incident of its cause."""
        return (self.cause, self.resource, self.root, self.kind is FindingKind.BOTTLENECK)


JUDGED_NS = "wall time judged (ns)"
"""Evidence of a cause whose lost time and shares are of a part of its time range only: how long that part is."""


def share_of_wall_time(judged_ns: Fact | None) -> str:
    """What a share is of, as texts say it. judged_ns: see JUDGED_NS; None: of all the time range."""
    if not isinstance(judged_ns, int):
        return "of wall time"
    return f"of the {format_ns(judged_ns)} in which launches were traced"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEvaluated:
    """A cause that this recording cannot show, with the reason: its absence from the findings proves nothing.

    time_ranges: the parts of the window in which it cannot be shown, in order; empty: the entire window.
    """

    cause: str
    reason: str
    time_ranges: tuple[Window, ...] = ()

    @property
    def text(self) -> str:
        """The reason, with the time ranges that it holds for."""
        if not self.time_ranges:
            return self.reason
        begin_ns, end_ns = self.time_ranges[0].begin_ns, self.time_ranges[-1].end_ns
        first, last = (format_time_of_day(at, of_ns=end_ns - begin_ns) for at in (begin_ns, end_ns))
        length = format_ns(sum(window.duration_ns for window in self.time_ranges))
        times = f" in {len(self.time_ranges)} time ranges" if len(self.time_ranges) > 1 else ""
        return f"{self.reason}, from {first} to {last}, {length}{times}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessVerdict:
    """The verdict on one process; has_incident: its incidents are in `Diagnosis.incidents`.

    how, steps: how its steps are known, and their number; for SYNC they are sync intervals; None and 0 without either.
    node: the node of the process; "" in a recording of one node.
    """

    process: int
    pid: int
    name: str
    text: str
    has_incident: bool
    rank: int | None = None
    how: How | None = None
    steps: int = 0
    gpu_idle: GpuIdle | None = None
    node: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All incidents of a window, worst first, and what was not checked. profiles: of an imported recording."""

    window: Window
    incidents: tuple[Incident, ...]
    verdicts: tuple[ProcessVerdict, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    not_traced: Mapping[str, str]
    profiles: Profiles | None = None


def severity_of(lost_ratio: float) -> Severity:
    """The severity of an incident that lost this share of wall time."""
    if lost_ratio >= HIGH_RATIO:
        return Severity.HIGH
    return Severity.MEDIUM if lost_ratio >= MEDIUM_RATIO else Severity.LOW
