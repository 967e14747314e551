"""What a reader answers and what a recorder is told: frozen records. Times are unix ns; None means not recorded."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ingero.store.vocabulary import STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """What a recording is about; written when it starts."""

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
    """A node's clock was ahead by offset_ns, to bound_ns, at a moment by the clock of who asked it (unix ns).

    reference: of whose clock, and when; offsets of two references cannot be compared.
    """

    at_ns: int
    offset_ns: int
    bound_ns: int
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPair:
    """One moment of a boot by CLOCK_MONOTONIC and by the wall clock.

    suspended_ns: for how long the host had been suspended by then, which CLOCK_MONOTONIC does not count.
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
        """Its length."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One recording. stopped_ns is None while it goes on, and after it was killed; then last_seen_ns is its end.

    options, not_traced: JSON objects; the second says of a source why nothing of it can be there.
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
    """Nanoseconds per state."""

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
        """Their sum: the elapsed time."""
        return sum(getattr(self, f"{clock}_ns") for clock in STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTotals:
    """The exact totals of one operation in one process (outermost calls).

    recorded: how many of them are rows of events. clocks: None where no account was kept. p50 to p99: None where no
    histogram was kept; they are of the whole minutes that touch the window.
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

    untimed: of count, the calls that were only counted; nothing of them is in sum_ns.
    held_up_ns: of sum_ns, what the callers were runnable, throttled, yielded or stopped; 0 where no account was kept.
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
        """What the calls took themselves."""
        return self.sum_ns - self.held_up_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyShare:
    """What copies by one call moved between the host and GPUs in a time range; fractions as of `OpShare`.

    blocked_ns: in asynchronous ones that waited, because their host memory is pageable.
    """

    source: int
    op: int
    host_to_gpu_bytes: float
    gpu_to_host_bytes: float
    blocked_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStateTotals:
    """What the threads of a process did, summed over them. major_faults: pages read from disk; None: not recorded."""

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

    clocks: of the thread that makes the marker's call, while it was not blocked for the GPU. blocked_ns: in the order
    of BLOCKED_KINDS. marker: the call that most of them begin with. untimed: steps whose launches had no
    durations, unseen: those of them whose launches were not traced at all.
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
    """Who ran while a process waited: culprit_pid 0 is an idle CPU, -1 unknown. kind: `runq` or `yielded`."""

    process: int
    kind: str
    culprit_pid: int
    culprit_name: str
    culprit_cgroup_id: int
    ns: int
    switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakerTotals:
    """Who ended the sleeps of a process."""

    process: int
    waker_kind: str
    waker_pid: int
    waker_tid: int
    waker_name: str
    count: int
    sleep_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySite:
    """What one call site held of GPU memory when the window began and when it ended, and what it did between.

    memory_kind: device, managed, pinned (of the host), mapped (made by cuMemCreate). stack_hash: where its recorded
    calls came from; those without a record are together under 0. peak_bytes: the most it held at a time so far, before
    the window, too. begin_bytes + allocated_bytes - freed_bytes = end_bytes, unless the process has become another
    program. foreign_frees: frees by this caller of memory that was not seen allocated.
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
        """By how much it holds more at the end."""
        return self.end_bytes - self.begin_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded call or host event with its account; clocks and culprit are None where there is none."""

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
        """How long the thread could have run: all of it that was no sleep, of a sleep what followed the wake-up."""
        if self.state in ("runq", "throttled", "yielded"):
            return self.duration_ns
        return max(0, self.start_ns + self.duration_ns - self.woken_ns) if self.woken_ns else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What the size limit has taken from the file: rows of a table up to a time.

    kind: "removed", or "folded": seconds into minutes, every sum unchanged. until_ns, noted_ns: unix.
    """

    name: str
    kind: str
    until_ns: int
    rows: int
    noted_ns: int
    max_db_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What was lost, repaired or could not be told, by reason."""

    session: int
    counter: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A call that was still open when it was last looked at.

    awake_ns: since it was first seen open, its thread ran, or could have run; 0 in a recording that does not say so.
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
    """What is known of a wait: somebody who could end it is at work, is named, or nobody who could will."""

    AT_WORK = 0
    NAMED = 1
    NEVER = 2
    STOPPED = 3  # the thread itself is


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRow:
    """A thread in the chain of waits of a halted process, as one look saw it; owners: JSON, see `raw_halts`."""

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
    """The system at one time.

    elapsed_ns: the time in which pressure and the recorder's CPU time have grown by what stands here; None in the first
    of a recording, whose period is not known.
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
    """How often and how long a control group was throttled."""

    cgroup_id: int
    nr_throttled: int
    throttled_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadLevel:
    """What was given up from a time on, and why. not_traced: codes of `given_up`, comma separated; "": nothing was.

    overhead_ratio: of the time of the busiest traced thread, agent_cpu_ratio: of a core, in the second before.
    """

    session: int
    time_ns: int
    level: int
    agent_level: int
    not_traced: str
    reason: str
    overhead_ratio: float
    agent_cpu_ratio: float


PYTHON_LINES = "Python lines"  # as the symbol of an interpreter of which none are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingProbe:
    """A call that was not traced in one copy of its library, and why.

    symbol: of the whole file the library's name (`libnccl`), "" where that is not known; PYTHON_LINES.
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

    Names are empty where they are not known; then `source_of_name` says why, and function tells kernels apart (else 0).
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
    """One recorded NCCL collective of one rank. sequence: its place in the communicator's order, None: unknown."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One control group; container_id is empty for those that are no container."""

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
    """The recorded calls of one operation in one process that have one stack; stack_hash 0: none was taken."""

    process: int
    source: int
    op: int
    name: str
    stack_hash: int
    count: int
    sum_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSums:
    """The recorded calls of one operation by one thread that have one stack."""

    source: int
    op: int
    stack_hash: int
    tid: int
    count: int
    sum_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSample:
    """Where a thread outside traced calls was when it was last looked at; stack_hash 0: it is not known."""

    time_ns: int
    tid: int
    comm: str
    state: str
    stack_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTotals:
    """The samples of one thread in one state with one stack, outside traced calls; stack_hash 0: it is not known.

    state: see events.THREAD_STATES. is_collecting: it collected garbage. ns: the time that they stand for.
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
    """One stored chain."""

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
    """An incident found while it was recorded; end_ns None: it went on. `affected` to the account: JSON texts."""

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
