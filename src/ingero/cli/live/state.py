"""The state of the live view as plain data, which can be drawn now or in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ingero.capture.host.snapshots import AgentUsage
from ingero.capture.sums.host_sums import HostSum
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import SystemSample
from ingero.ops import Op, Source
from ingero.step_counts import StepCount


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLibrary:
    """A library copy and how many of its calls are probed; refused: probes that the kernel rejected."""

    path: str
    attached: int
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that is not traced, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """The attached probes.

    sources: those with at least one probed call. is_resting: no process is traced, so no program runs in the scheduler.
    """

    mode: str = ""
    libraries: tuple[ProbedLibrary, ...] = ()
    sources: frozenset[Source] = frozenset()
    missing: tuple[Missing, ...] = ()
    is_resting: bool = False

    @property
    def attached(self) -> int:
        """The number of probes in all library copies."""
        return sum(library.attached for library in self.libraries)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLine:
    """One traced process in the last seconds.

    gpus: NVML's indexes of the GPUs that it uses. wait_ratio: time in calls that wait for the GPU, share of its wall
    time, all threads summed. ran_instead_ns: time that other processes ran while its threads were runnable.
    """

    pid: int
    name: str
    user: str = ""
    rank: int | None = None
    world_size: int | None = None
    gpus: tuple[int, ...] = ()
    calls: int = 0
    wait_ratio: float = 0.0
    ran_instead_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLine:
    """One traced call in the last seconds.

    nested: calls inside another traced call, not in `count`. percentiles: None without a call that returned.
    wall_ratio: time inside, share of the wall time of the processes that called it, all threads summed.
    is_slow: its p99 is SLOW_FACTOR times its p99 before these seconds.
    """

    op: Op
    count: int
    nested: int = 0
    errors: int = 0
    p50_ns: float | None = None
    p95_ns: float | None = None
    p99_ns: float | None = None
    max_ns: int = 0
    wall_ratio: float = 0.0
    is_slow: bool = False
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritLine:
    """A process that ran while traced threads were runnable; pid 0 is an idle CPU."""

    pid: int
    name: str
    ns: int
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The last answer of NVML.

    reason: why there are no GPUs; empty if there are. no_answer_s: seconds since the last answer, if that is too long.
    """

    gpus: tuple[Gpu, ...] = ()
    samples: tuple[GpuSample, ...] = ()
    reason: str = ""
    no_answer_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLine:
    """A counter of dropped data: in the last seconds, and since the recording began."""

    name: str
    recent: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Everything on the screen.

    recorded_s: since the start. window_s: length of the last seconds, to which all counts but totals refer.
    states_ns: thread-state time of all traced threads; call_states_ns: of their traced calls; in the order of STATES.
    database_bytes: None if nothing is kept. counts: steps and sync intervals by process. rows_per_s: records of
    calls, steps and sync intervals.
    agent_ratio: CPU time of the agent, share of one core.
    """

    recorded_s: float = 0.0
    window_s: float = 0.0
    processes: tuple[ProcessLine, ...] = ()
    threads: int = 0
    probes: ProbeState = field(default_factory=ProbeState)
    system: SystemSample | None = None
    gpu: GpuState = field(default_factory=GpuState)
    ops: tuple[OpLine, ...] = ()
    in_flight: int = 0
    states_ns: tuple[int, ...] = ()
    call_states_ns: tuple[int, ...] = ()
    switches: int = 0
    involuntary_switches: int = 0
    culprits: tuple[CulpritLine, ...] = ()
    host: tuple[HostSum, ...] = ()
    counts: Mapping[int, StepCount] = field(default_factory=dict)
    drops: tuple[DropLine, ...] = ()
    agent: AgentUsage | None = None
    agent_ratio: float | None = None
    calls_per_s: float = 0.0
    rows_per_s: float = 0.0
    database: str = ""
    database_bytes: int | None = None
    warnings: tuple[str, ...] = ()
    left_out: str = ""
