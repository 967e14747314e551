"""Names of the kernel side's codes: thread states, wakers, kinds and flags."""

from __future__ import annotations

import enum

STATES: tuple[str, ...] = ("run", "runq", "throttled", "yielded", "sleep", "io", "uninterruptible", "stopped")
STATE_COLUMNS: tuple[str, ...] = tuple(f"{clock}_ns" for clock in STATES)
HELD_UP: tuple[str, ...] = ("runq", "throttled", "yielded", "stopped")  # whatever the thread was about to do

# states of a thread, in words for people
STATE_TEXTS: dict[str, str] = {
    "run": "running",
    "runq": "runnable (waiting for a CPU)",
    "throttled": "throttled (CPU quota)",
    "yielded": "yielded (sched_yield)",
    "sleep": "sleeping",
    "io": "I/O wait",
    "uninterruptible": "uninterruptible (D state)",
    "stopped": "stopped by a signal",
}

INTERPRETER_LOCK = 1  # bit of the address that a thread slept at, which is even: it is its interpreter's lock
# In place of that address, the kind of another system call that it slept in:
SENDS = 2  # write, send, connect, open
RECEIVES = 4  # read, receive, poll
WAITS_FOR_EVENTS = 6  # epoll
ASKS_FILE_SYSTEM = 8  # stat, getdents, fsync, close
LOCKS_FILE = 10  # flock, fcntl
WAITS_FOR_CHILD = 12  # wait4, waitid
PAGE_FAULT = 14  # in no call: a page that it touched was not there
OWN_REQUESTS = (SENDS, ASKS_FILE_SYSTEM, LOCKS_FILE)  # with these it asks for something itself
LAST_CALL_KIND = 14  # larger numbers are addresses

# From here on: names and numbers of the enumerations of bpf/events.h. A test compares them with the compiled objects.
THREAD_STATES: tuple[str, ...] = ("init", *STATES)
WAKER_KINDS: tuple[str, ...] = ("none", "thread", "kworker", "timer", "network", "block", "interrupt")

# Why a GPU's clocks are lower than they could be: bit of NVML's clocks event reasons -> name. Bit 0 (the GPU is idle)
# is none. Source: NVML API reference, "Clocks event reasons".
THROTTLE_REASONS: dict[int, str] = {
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
    0x100: "display clock",
}

# Whose memory was used up when a process was killed for it, by number; see bpf/events.h, enum memory_limit.
MEMORY_LIMITS: tuple[str, ...] = ("unknown", "host", "cgroup")


class HostKind(enum.IntEnum):
    """What a host event is (enum host_kind)."""

    BLOCK_READ = 1
    BLOCK_WRITE = 2
    BLOCK_DISCARD = 3
    BLOCK_FLUSH = 4
    DIRECT_RECLAIM = 5
    COMPACTION = 6
    TCP_RETRANSMIT = 7
    NET_SEND = 8
    NET_RECEIVE = 9
    LATE_TIMER = 10


class LifecycleKind(enum.IntEnum):
    """What has happened to a process (enum lifecycle_kind)."""

    FORK = 1
    EXEC = 2
    EXIT = 3
    ADMIT = 4
    OOM_KILL = 5
    STOP_SIGNAL = 6


class CommunicatorKind(enum.IntEnum):
    """What has happened to a communicator (enum communicator_kind)."""

    MADE = 1
    FOUND = 2
    RANKED = 3
    ENDED = 4
    LEFT = 5


BLOCKED_KINDS: tuple[str, ...] = ("sync", "copy", "launch", "alloc")  # enum blocked_kind


class SampleFlag(enum.IntFlag):
    """Bits of a sample (enum sample_flag)."""

    COLLECTING = 1 << 0


class CallFlag(enum.IntFlag):
    """Column `flags` of events (bpf/events.h, enum call_flag)."""

    INCOMPLETE = 1 << 0
    UNFINISHED = 1 << 1
    SAMPLED = 1 << 3
    RARE = 1 << 4
    SLOW = 1 << 5
    WAITED = 1 << 6
    FAILED = 1 << 7


class HostFlag(enum.IntFlag):
    """Column `flags` of host events (bpf/events.h, enum host_flag)."""

    ISSUER_IS_KTHREAD = 1 << 0
    IN_PAGE_FAULT = 1 << 1
    MEMCG_LIMIT = 1 << 2
    ONE_OF_MANY = 1 << 3


HOST_MANY = 16  # requests for which one with that flag stands (bpf/events.h)


class HostMemory(enum.IntEnum):
    """Kind of host memory at one end of a copy (`handle` of its record; bpf/events.h)."""

    UNKNOWN = 0
    PINNED = 1
    PAGEABLE = 2
    SEEMS_PAGEABLE = 3


class SyncIntervalFlag(enum.IntFlag):
    """Column `flags` of sync intervals: the low bits as bpf/events.h has them, from bit 8 on what the agent adds."""

    IDLE_OTHER_THREAD = 1 << 0
    LAUNCH_OTHER_THREAD = 1 << 1
    WOKEN = 1 << 2
    PARTIAL = 1 << 3
    INCOMPLETE = 1 << 4
    FIRST_UNKNOWN = 1 << 5
    PAGEABLE_COPY = 1 << 6
    BEFORE_COPY = 1 << 7
    NO_WAIT = 1 << 8
    ESTIMATED = 1 << 9
    COVERAGE_CHANGED = 1 << 10  # what is traced changed within it: compare it with no other
    STEP = 1 << 11  # a step found by repetition: idle is the host's part, busy what its thread was blocked for the GPU
    ENQUEUES_UNSEEN = (
        1 << 12
    )  # launches or copies were not traced: idle is the host's part until the sync, busy the wait
    UNTIMED = 1 << 13  # what launches were blocked on a full queue is not known: no durations, or each was slow
    LAUNCHES_UNSEEN = 1 << 14  # of a step: its launches were not traced, and their number is not known
