"""What a diagnosis says: findings of rules, the incidents they become, and what could not be told.

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
HIGH_RATIO = 0.20  # of wall time
MEDIUM_RATIO = 0.05
_MUCH_LONGER = 2  # times the mean, before the longest call is shown beside it
_OF_A_PACKAGE = ("__init__.py", "__main__.py")  # names that alone say nothing


class Severity(enum.IntEnum):
    """How bad a finding is."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


class FindingKind(enum.Enum):
    """What a finding claims.

    INCIDENT: time was lost against a reference seen to be better. BOTTLENECK: slow for as long as it was seen, a share
    of wall time against zero. EVENT: something happened that needs no lost time to matter (a kill, a hang, a leak).
    """

    INCIDENT = "incident"
    BOTTLENECK = "bottleneck"
    EVENT = "event"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """A place in the workload's own code; line 0: only the function is known.

    waiting_thread: PID/TID of the thread that is there, where it is not the calling one but waits for it.
    """

    file: str
    line: int
    function: str
    waiting_thread: str = ""

    def __str__(self) -> str:
        return self._text(self.file)

    @property
    def short(self) -> str:
        """With the file's name only; of a package's own file with the package's."""
        path = PurePath(self.file)
        return self._text(f"{path.parent.name}/{path.name}" if path.name in _OF_A_PACKAGE else path.name)

    def _text(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        mark = f" {waiting_mark(self.waiting_thread)}" if self.waiting_thread else ""
        return (f"{self.function}() at {place}" if self.function else place) + mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The line of Python and the call on the critical path of the affected process, or why it is not known.

    call: the traced call at that line, "" outside of GPU calls. mean_ns, baseline_ns: of one such call, or outside of
    calls of one `per` (step, sync interval); None: not known, or no baseline. longest_ns: of the recorded calls.
    is_exact: means are of every call, not of the recorded ones or of samples. state: what the thread did outside of
    calls. who: the thread that was there, where it is not on the critical path itself.
    why_not: a clause where line is None.
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
        if self.longest_ns is not None and self.longest_ns > _MUCH_LONGER * self.mean_ns:
            more.append(f"longest {format_ns(self.longest_ns)}")
        return f" {about}{format_ns(self.mean_ns)}{each}" + (f" ({', '.join(more)})" if more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributing:
    """Another cause of the same lost time, with its part of it."""

    cause: str
    lost_ns: int
    share_ratio: float
    headline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who took the time.

    lost_ns: time it occupied while the affected process waited; container: short name, "" on the host; job: of a
    scheduler, as texts name it.
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
    """One link of the chain from the stall to its root, with the three checks it passed.

    text: what happened, as a sentence. seen_ns, expected_ns: in the window, expected from the reference (None where
    there is none). structure: the waits-for edge seen; order: why the cause came first.
    """

    text: str
    seen_ns: int = 0
    expected_ns: int | None = None
    structure: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to do: a sentence, and where there is one the command with real pids, cores and names."""

    text: str
    command: str = ""


class Part(enum.Enum):
    """Where in the sync intervals time was lost."""

    IDLE = "idle"  # nothing was queued
    LAUNCH = "launch"  # the host's part of GPU busy: launches came too slowly for the GPU
    GPU = "gpu"  # the rest of GPU busy
    RETURN_DELAY = "return_delay"  # the GPU was done, the sync had not returned


@dataclass(frozen=True, slots=True)
class Bucket:
    """Lost time of one part in one state of the critical-path thread: of STATES, "gpu_execution" or "unknown"."""

    part: Part
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says about one case.

    claims: the lost time that it explains, by bucket. resource, root: with `cause` the identity of the incident.
    summary: one sentence that a human can forward. evidence: the numbers behind it.
    is_whole: whether it is a cause by itself, not only a part of one that it can be joined to. least_ratio: of wall
    time; what is lost by it below that is explained, but not told. is_apart: whether the loop's own work is known not
    to be a part of it.
    """

    cause: str
    summary: str
    claims: Mapping[Bucket, int] = field(default_factory=dict)
    resource: str = ""
    root: str = ""
    kind: FindingKind | None = None  # None: as the case says
    severity: Severity | None = None  # None: by the lost share
    window: Window | None = None  # None: the case's
    culprits: Sequence[Culprit] = ()
    line: CodeLine | None = None
    chain: Sequence[Link] = ()
    fixes: Sequence[Fix] = ()
    evidence: Mapping[str, Fact] = field(default_factory=dict)
    process: int = 0  # whose it is, where no case says it; 0: of nobody in particular
    affected: Affected | None = None  # who lost the time, where no case says it
    wall_ns: int = 0  # of which the lost time is a share, where no case says it
    is_whole: bool = True
    least_ratio: float = 0.0
    is_apart: bool = False
    absorbs: Sequence[int] = ()  # numbers of processes whose own findings at that time are the reason for this one
    waits_for: Sequence[int] = ()  # pids of the workers whose lateness it is about

    @property
    def lost_ns(self) -> int:
        """The lost time that it explains."""
        return sum(self.claims.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What the worst affected process noticed, and the same in its baseline (None where there is none).

    judged_by: `step` or `sync interval`; rates and quantiles are of these. involuntary_off_cpu_ratio: of its time, the
    critical-path thread could have run or was throttled; voluntary sleep does not count. context_switches,
    involuntary_context_switches: of all its threads.
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
    """A piece of an incident's timeline, from some time before it to some time after: lost share of wall time."""

    begin_ns: int
    end_ns: int
    lost_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One cause on one resource with one root, whoever its affected processes are.

    end_ns: None while it goes on. lost_ns: of its affected processes' streams, the longest (streams are never summed).
    lost_ratio: of the wall time of the incident; explained_ratio: what all causes found together explain of the
    affected process's lost time.
    account: lost ns by "part.state". peak_ratio: the worst second. node: of several in the recording, the one that it
    and everybody in it is on; "": it holds one.
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
    def identity(self) -> Identity:
        """What it is the same incident by, as it grows; a bottleneck is one of its own."""
        return (self.cause, self.resource, self.root, self.kind is FindingKind.BOTTLENECK)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEvaluated:
    """A cause that this recording cannot show, with the reason: silence about it is no all-clear.

    time ranges: the parts of the window in which it cannot, in order; none: all of it.
    """

    cause: str
    reason: str
    time_ranges: tuple[Window, ...] = ()

    @property
    def text(self) -> str:
        """The reason, and when."""
        if not self.time_ranges:
            return self.reason
        begin_ns, end_ns = self.time_ranges[0].begin_ns, self.time_ranges[-1].end_ns
        first, last = (format_time_of_day(at, of_ns=end_ns - begin_ns) for at in (begin_ns, end_ns))
        length = format_ns(sum(one.duration_ns for one in self.time_ranges))
        times = f" in {len(self.time_ranges)} time ranges" if len(self.time_ranges) > 1 else ""
        return f"{self.reason}, from {first} to {last}, {length}{times}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessVerdict:
    """What is said of a process as a whole; has_incident: see `Diagnosis.incidents`.

    how, steps: how its steps are known, and how many there are; of SYNC they are sync intervals. None and 0 where there
    are neither. node: as of an incident.
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
    """Everything that was found in a window, worst first, and what was not looked at. profiles: of an imported one."""

    window: Window
    incidents: tuple[Incident, ...]
    verdicts: tuple[ProcessVerdict, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    not_traced: Mapping[str, str]
    profiles: Profiles | None = None


def severity_of(lost_ratio: float) -> Severity:
    """By the lost share of wall time."""
    if lost_ratio >= HIGH_RATIO:
        return Severity.HIGH
    return Severity.MEDIUM if lost_ratio >= MEDIUM_RATIO else Severity.LOW
