"""The rows that pass through streams, column by column. Columns that say "string" hold numbers for `Names.text`."""

from __future__ import annotations

from typing import Any, NamedTuple


class EventRow(NamedTuple):
    """A row of raw_events. Columns that say "string" there are numbers for `Names.text`, in older files the text."""

    session: int
    process: int
    pid: int
    tid: int
    start_ns: int
    duration_ns: int
    source: int
    op: int
    arg0: int
    arg1: int
    arg2: int
    stream: int
    ret_code: int
    gpu_id: int
    caller_library: int
    function: int
    detail: int
    cgroup_id: int
    comm: int | str | None
    cpu: int
    residual_ns: int | None
    involuntary_switches: int | None
    culprit_pid: int
    culprit_name: int
    culprit_ns: int
    waker_kind: int | None
    waker_tid: int
    waker_name: int
    flags: int
    stack_hash: int
    run_ns: int | None
    runq_ns: int | None
    throttled_ns: int | None
    yielded_ns: int | None
    sleep_ns: int | None
    io_ns: int | None
    uninterruptible_ns: int | None
    stopped_ns: int | None


class OffCpuRow(NamedTuple):
    """A row of raw_offcpu."""

    session: int
    process: int
    pid: int
    tid: int
    start_ns: int
    duration_ns: int
    comm: int | str | None
    state: int | None
    woken_ns: int
    cpu: int
    culprit_pid: int
    culprit_name: int
    culprit_ns: int
    waker_kind: int | None
    waker_pid: int
    waker_tid: int
    waker_name: int


class SyncIntervalRow(NamedTuple):
    """A row of raw_sync_intervals. recorded_sync_start_ns: when its recorded sync began; None: that call has no row."""

    session: int
    process: int
    pid: int
    device: int
    stream: int
    first_launch_ns: int
    sync_start_ns: int
    sync_end_ns: int
    idle_ns: int
    busy_ns: int
    return_delay_ns: int
    launches: int
    bytes: int
    op_set: int
    source: int
    op: int
    first_launch_tid: int
    sync_tid: int
    graph: int
    flags: int
    recorded_sync_start_ns: int | None
    idle_run_ns: int | None
    idle_runq_ns: int | None
    idle_throttled_ns: int | None
    idle_yielded_ns: int | None
    idle_sleep_ns: int | None
    idle_io_ns: int | None
    idle_uninterruptible_ns: int | None
    idle_stopped_ns: int | None
    launch_run_ns: int | None
    launch_runq_ns: int | None
    launch_throttled_ns: int | None
    launch_yielded_ns: int | None
    launch_sleep_ns: int | None
    launch_io_ns: int | None
    launch_uninterruptible_ns: int | None
    launch_stopped_ns: int | None
    sync_run_ns: int | None
    sync_runq_ns: int | None
    sync_throttled_ns: int | None
    sync_yielded_ns: int | None
    sync_sleep_ns: int | None
    sync_io_ns: int | None
    sync_uninterruptible_ns: int | None
    sync_stopped_ns: int | None


class StepRow(NamedTuple):
    """A row of raw_steps."""

    session: int
    process: int
    pid: int
    start_ns: int
    end_ns: int
    how: int
    step_type: int
    source: int
    op: int
    launches: int
    copies: int
    collectives: int
    syncs: int
    host_to_gpu_bytes: int
    gpu_to_host_bytes: int
    blocked_sync_ns: int
    blocked_copy_ns: int
    blocked_launch_ns: int
    blocked_alloc_ns: int
    flags: int


class ThreadsRow(NamedTuple):
    """A row of raw_thread_state_seconds: a process's threads on CPUs, and waiting for one."""

    session: int
    process: int
    start_ns: int
    period_s: float
    run_ns: int
    runq_ns: int


class GpuRow(NamedTuple):
    """A row of raw_gpu_samples; None where the GPU or its driver does not say."""

    session: int
    time_ns: int
    gpu_index: int
    gpu_percent: int | None
    memory_percent: int | None
    memory_used_bytes: int | None
    sm_clock_mhz: int | None
    power_mw: int | None
    temperature_c: int | None


class InFlightRow(NamedTuple):
    """Number of calls of a process in flight at one time."""

    session: int
    process: int
    pid: int
    time_ns: int
    calls: int


class DropRow(NamedTuple):
    """A row of raw_drops."""

    session: int
    start_ns: int
    counter: str
    reason: str
    lost: int


class StackWeight(NamedTuple):
    """The recorded calls of one operation in one process with one stack. offcpu_ns: None if not recorded."""

    process: int
    pid: int
    source: int
    op: int
    stack_hash: int
    calls: int
    time_ns: int
    offcpu_ns: int | None


def columns_of(row: type[tuple[Any, ...]], table: str = "") -> str:
    """The columns of a row for a SELECT."""
    prefix = f"{table}." if table else ""
    return ", ".join(f"{prefix}{name}" for name in row._fields)  # type: ignore[attr-defined]  # of every NamedTuple
