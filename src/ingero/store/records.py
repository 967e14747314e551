"""Frozen records that readers return and recorders write. Times are Unix ns; None means not recorded."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ingero.store.vocabulary import STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """Facts about a recording's host and settings, written when it starts."""

    uuid: str
    started_ns: int
    boot_id: str = ""
    machine_id: str = ""
    kernel: str = ""
    os_release: str = ""
    cpu_model: str = ""
    cpu_count: int = 0
    memory_bytes: int = 0
    gpu_model: str = ""
    gpu_driver: str = ""
    cuda_ver: str = ""
    python_ver: str = ""
    ingero_ver: str = ""
    agent_pid: int = 0
    pid_filter: str = ""
    flags: str = ""
    options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    not_traced: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """How far a node's clock was ahead: offset_ns, within bound_ns, at a time on the asking host's clock (Unix ns).

    reference: the clock asked from, and when; offsets to two different references cannot be compared.
    """

    at_ns: int
    offset_ns: int
    bound_ns: int
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPair:
    """One time of a boot by CLOCK_MONOTONIC and by the wall clock.

    suspended_ns: how long the host had been suspended until then, which CLOCK_MONOTONIC does not count.
    """

    boot_id: str
    mono_ns: int
    unix_ns: int
    suspended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time range, [begin_ns, end_ns)."""

    begin_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the time range."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One recording. stopped_ns is None while it is ongoing, and after it was killed; then last_seen_ns is its end.

    options, not_traced: JSON objects; the second maps a source to the reason why nothing of it was traced.
    """

    session: int
    uuid: str
    node: str
    started_ns: int
    last_seen_ns: int
    stopped_ns: int | None
    stop_reason: str
    kernel: str
    os_release: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    gpu_model: str
    gpu_driver: str
    cuda_ver: str
    python_ver: str
    ingero_ver: str
    pid_filter: str
    flags: str
    options: str
    not_traced: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process: pid and start time are its identity, `process` is its number in this file."""

    process: int
    session: int
    pid: int
    start_ns: int
    name: str
    cmdline: str
    uid: int | None
    parent_pid: int | None
    cgroup_id: int | None
    rank: int | None
    local_rank: int | None
    world_size: int | None
    scheduler: str = ""
    job: str = ""
    job_step: str = ""
    rank_source: str = ""
    is_traced: bool
    first_seen_ns: int
    last_seen_ns: int
    exit_ns: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A thread of a traced process."""

    process: int
    tid: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Time in each thread state, in ns."""

    run_ns: int
    runq_ns: int
    throttled_ns: int
    yielded_ns: int
    sleep_ns: int
    io_ns: int
    uninterruptible_ns: int
    stopped_ns: int

    @property
    def total_ns(self) -> int:
        """Sum over all states: the elapsed time."""
        return sum(getattr(self, f"{clock}_ns") for clock in STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTotals:
    """The exact totals of one operation in one process (outermost calls).

    recorded: how many of the calls are rows of events. clocks: None where no thread-state time was kept. p50 to p99:
    None where no histogram was kept; they are of the whole minutes that touch the window.
    """

    process: int
    pid: int
    source: int
    op: int
    name: str
    count: int
    errors: int | None
    nested: int | None
    recorded: int
    sum_ns: int
    max_ns: int
    bytes: int
    clocks: Clocks | None
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpShare:
    """Calls of one operation in a time range that need not begin with a second: hence fractions.

    untimed: the part of count that was only counted and is not in sum_ns.
    held_up_ns: the part of sum_ns in which callers were runnable, throttled, yielded or stopped; 0 where no
    thread-state time was kept.
    """

    source: int
    op: int
    name: str
    count: float
    untimed: float
    sum_ns: float
    held_up_ns: float
    bytes: float
    errors: float

    @property
    def timed(self) -> float:
        """The calls that have a duration."""
        return self.count - self.untimed

    @property
    def own_ns(self) -> float:
        """Time of the calls without held_up_ns."""
        return self.sum_ns - self.held_up_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyShare:
    """Bytes that copies by one call moved between host and GPUs in a time range; fractional like `OpShare`.

    blocked_ns: time in asynchronous copies that waited because their host memory is pageable.
    """

    source: int
    op: int
    host_to_gpu_bytes: float
    gpu_to_host_bytes: float
    blocked_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStateTotals:
    """Thread-state time summed over a process's threads. major_faults: pages read from disk; None: not recorded."""

    process: int
    pid: int
    clocks: Clocks
    switches: int
    involuntary_switches: int
    threads: int
    major_faults: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """The steps of a process that were found by repetition, summed: wall_ns = clocks.total_ns + the sum of blocked_ns.

    clocks: thread-state time of the thread that calls the marker, while it was not blocked on the GPU. blocked_ns: in
    the order of BLOCKED_KINDS. marker: the call that most steps begin with. untimed: steps whose launches had no
    durations; unseen: the part of untimed whose launches were not traced at all.
    """

    process: int
    steps: int
    marker: str
    wall_ns: int
    clocks: Clocks
    blocked_ns: tuple[int, ...]
    untimed: int
    unseen: int
    incomplete: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritTotals:
    """The process that ran while another waited; culprit_pid 0: idle CPU, -1: unknown. kind: `runq` or `yielded`."""

    process: int
    kind: str
    culprit_pid: int
    culprit_name: str
    culprit_cgroup_id: int
    ns: int
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakerTotals:
    """The process or kernel context that ended sleeps of a process."""

    process: int
    waker_kind: str
    waker_pid: int
    waker_tid: int
    waker_name: str
    count: int
    sleep_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySite:
    """GPU memory that one call site held at the begin and the end of a window, and its allocations and frees between.

    memory_kind: device, managed, pinned (on the host), mapped (made by cuMemCreate). stack_hash: the stack of its
    recorded calls; calls without a record are together under 0. peak_bytes: the most it held at a time so far, also
    before the window. begin_bytes + allocated_bytes - freed_bytes = end_bytes, unless the process executed another
    program. foreign_frees: frees by this caller of memory whose allocation was not seen.
    """

    process: int
    source: int
    op: int
    name: str
    caller: int
    library: str
    offset: int
    memory_kind: str
    stack_hash: int
    begin_bytes: int
    end_bytes: int
    begin_count: int
    end_count: int
    peak_bytes: int
    allocated_bytes: int
    freed_bytes: int
    allocations: int
    frees: int
    failures: int
    failed_bytes: int
    foreign_frees: int

    @property
    def growth_bytes(self) -> int:
        """How much more memory the call site held at the end of the window."""
        return self.end_bytes - self.begin_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded call or host event with its thread-state time; clocks and culprit are None where not known."""

    event_id: str
    node: str
    start_ns: int
    duration_ns: int
    process: int
    pid: int
    tid: int
    comm: str
    source: int
    op: int
    name: str
    bytes: int
    handle: int
    extra: int
    stream: int
    ret_code: int
    gpu_id: int | None
    cgroup_id: int
    caller_library: str
    kernel_name: str
    detail: str
    cpu: int | None
    clocks: Clocks | None
    residual_ns: int | None
    involuntary_switches: int | None
    switches: int | None
    culprit_pid: int | None
    culprit_name: str
    culprit_ns: int | None
    waker_kind: str
    waker_tid: int | None
    waker_name: str
    flags: int
    stack_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffCpu:
    """One interval off the CPU; state is None where the recorder did not know why the thread was off."""

    start_ns: int
    duration_ns: int
    process: int
    pid: int
    tid: int
    comm: str
    state: str | None
    woken_ns: int | None
    cpu: int | None
    culprit_pid: int | None
    culprit_name: str
    culprit_ns: int | None
    waker_kind: str
    waker_pid: int | None
    waker_tid: int | None
    waker_name: str

    @property
    def waited_ns(self) -> int:
        """How long the thread could have run: all of the interval if it was no sleep, else from the wake-up on."""
        if self.state in ("runq", "throttled", "yielded"):
            return self.duration_ns
        return max(0, self.start_ns + self.duration_ns - self.woken_ns) if self.woken_ns else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Rows of a table that the size limit pruned or downsampled, up to a time.

    kind: "removed", or "folded": seconds into minutes, every sum unchanged. until_ns, noted_ns: Unix ns.
    """

    name: str
    kind: str
    until_ns: int
    rows: int
    noted_ns: int
    max_db_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Number of events dropped, repaired or not distinguishable, by reason."""

    session: int
    counter: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A call that was still in flight when it was last checked.

    awake_ns: time its thread ran or could have run since it was first seen in flight; 0 where that is not recorded.
    """

    time_ns: int
    process: int
    pid: int
    tid: int
    source: int
    op: int
    name: str
    since_ns: int
    awake_ns: int
    stack_hash: int
    handle: int
    communicator: int
    sequence: int


class HaltLevel(enum.IntEnum):
    """What is known of a wait: a thread that can end it is running, is named, or no thread will end it."""

    AT_WORK = 0
    NAMED = 1
    NEVER = 2
    STOPPED = 3  # the thread itself is


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRow:
    """A thread in the chain of waits of a halted process, as one sample saw it; owners: JSON, see `raw_halts`."""

    time_ns: int
    halted: int
    since_ns: int
    depth: int
    process: int
    pid: int
    tid: int
    name: str
    state: str
    syscall: str
    wchan: str
    kind: str
    object: str
    is_timed: int
    level: int
    owners: str
    shm_bytes: int | None
    shm_free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot of the host at one time.

    elapsed_ns: the time in which pressure and the recorder's CPU time grew by the values here; None in the first
    snapshot of a recording, whose period is not known.
    """

    time_ns: int
    session: int
    elapsed_ns: int | None
    cpu_percent: float | None
    mem_percent: float | None
    mem_available_bytes: int | None
    swap_used_bytes: int | None
    load_avg: float | None
    psi_cpu_some_ns: int | None
    psi_memory_some_ns: int | None
    psi_memory_full_ns: int | None
    psi_io_some_ns: int | None
    psi_io_full_ns: int | None
    agent_cpu_ns: int | None
    agent_rss_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """How often and how long a cgroup was throttled."""

    cgroup_id: int
    nr_throttled: int
    throttled_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLevel:
    """What tracing was reduced to from a time on, and why. not_traced: codes of `given_up`, comma separated; "": all is
    traced.

    overhead_ratio: share of the busiest traced thread's time, agent_cpu_ratio: share of a core, in the second before.
    """

    session: int
    time_ns: int
    level: int
    agent_level: int
    not_traced: str
    reason: str
    overhead_ratio: float
    agent_cpu_ratio: float


PYTHON_LINES = "Python lines"  # symbol for an interpreter whose Python lines cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingProbe:
    """A call that was not traced in one copy of its library, and why.

    symbol: the call; for a whole file the library's name (`libnccl`), "" where that is not known; or PYTHON_LINES.
    """

    session: int
    library: str
    symbol: str
    source: int
    op: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaunches:
    """How often one library of a process launched one GPU kernel.

    Names are empty where not known; `source_of_name` then says why, and function distinguishes kernels (else 0).
    """

    process: int
    function: int
    name: str
    short_name: str
    library: str
    source_of_name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One rank's NCCL communicator; what is not known is None. comm_id_hash is equal on all its ranks."""

    process: int
    number: int
    handle: int | None
    comm_id_hash: int | None
    rank: int | None
    nranks: int | None
    created_ns: int
    destroyed_ns: int
    collectives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One NCCL collective of one rank. sequence: its place in the communicator's order, None: unknown."""

    process: int
    timestamp: int
    op: str
    comm_id_hash: int | None
    communicator: int
    sequence: int | None
    datatype: str
    reduce_op: str
    root: int | None
    bytes: int | None
    stack_hash: int
    tid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One cgroup; container_id is empty for a cgroup that is no container."""

    cgroup_id: int
    node: str
    container_id: str
    cgroup_path: str
    pod: str
    namespace: str
    orchestrator: str
    runtime: str  # what started the container
    unit: str  # of systemd
    scheduler: str = ""  # of the job that it is of
    job: str = ""
    job_step: str = ""
    owner: str = ""  # of a pod, as kubectl takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One deduplicated stack: JSON texts as stored."""

    hash: int
    ips: str
    frames: str
    note: str
    is_python_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTime:
    """The recorded calls of one operation in one process with the same stack; stack_hash 0: no stack was taken."""

    process: int
    source: int
    op: int
    name: str
    stack_hash: int
    count: int
    sum_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSums:
    """The recorded calls of one operation by one thread with the same stack."""

    source: int
    op: int
    stack_hash: int
    tid: int
    count: int
    sum_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSample:
    """The stack of a thread outside traced calls in its last sample; stack_hash 0: not known."""

    time_ns: int
    tid: int
    comm: str
    state: str
    stack_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTotals:
    """The samples of one thread in one state with one stack, outside traced calls; stack_hash 0: not known.

    state: see events.THREAD_STATES. is_collecting: it collected garbage. ns: the time that the samples stand for.
    """

    process: int
    pid: int
    tid: int
    comm: str
    state: str
    is_collecting: bool
    stack_hash: int
    count: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalChain:
    """One causal chain that an older recording stores."""

    chain_id: str
    node: str
    detected_ns: int
    severity: str
    summary: str
    root_cause: str
    explanation: str
    recommendations: str
    cuda_op: str
    cuda_p99_us: int | None
    cuda_p50_us: int | None
    tail_ratio: float | None
    timeline: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIncident:
    """An incident found while recording; end_ns None: it was ongoing. `affected` to the breakdown: JSON texts."""

    incident: int
    session: int
    cause: str
    resource: str
    root: str
    kind: str
    severity: str
    start_ns: int
    end_ns: int | None
    lost_ns: int
    lost_ratio: float | None
    explained_ratio: float | None
    peak: float | None
    summary: str
    affected: str
    culprits: str
    evidence: str
    fixes: str
    line: str
    chain: str
    breakdown: str
