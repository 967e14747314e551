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
    preemptions: int | None
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
    kernel_lock_ns: int | None
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


class EpochRow(NamedTuple):
    """A row of raw_epochs. drain_start_ns: when its recorded drain began; None where that call has no row."""

    session: int
    process: int
    pid: int
    device: int
    stream: int
    f_ns: int
    s_ns: int
    b_ns: int
    e_ns: int
    x_ns: int
    p_ns: int
    launches: int
    bytes: int
    op_set: int
    source: int
    op: int
    f_tid: int
    b_tid: int
    graph: int
    flags: int
    drain_start_ns: int | None
    empty_run_ns: int | None
    empty_runq_ns: int | None
    empty_throttled_ns: int | None
    empty_yielded_ns: int | None
    empty_sleep_ns: int | None
    empty_io_ns: int | None
    empty_kernel_lock_ns: int | None
    empty_stopped_ns: int | None
    enqueue_run_ns: int | None
    enqueue_runq_ns: int | None
    enqueue_throttled_ns: int | None
    enqueue_yielded_ns: int | None
    enqueue_sleep_ns: int | None
    enqueue_io_ns: int | None
    enqueue_kernel_lock_ns: int | None
    enqueue_stopped_ns: int | None
    drain_run_ns: int | None
    drain_runq_ns: int | None
    drain_throttled_ns: int | None
    drain_yielded_ns: int | None
    drain_sleep_ns: int | None
    drain_io_ns: int | None
    drain_kernel_lock_ns: int | None
    drain_stopped_ns: int | None


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
    """A row of raw_clock_seconds: a process's threads on CPUs, and waiting for one."""

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
    """How many calls of a process were seen open at a moment."""

    session: int
    process: int
    pid: int
    time_ns: int
    calls: int


class LossRow(NamedTuple):
    """A row of raw_losses."""

    session: int
    start_ns: int
    counter: str
    reason: str
    lost: int


class StackWeight(NamedTuple):
    """The recorded calls of one operation in one process that have one stack. offcpu_ns: None without an account."""

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
